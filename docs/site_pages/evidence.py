"""Pages of evidence: one for each system with its formula and its studies, and one table of all studies."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from site_pages.markdown import anchor, prose, source, table

from palaestra.catalogue import Declaration, Study, System
from palaestra.catalogue.studies import results_of, trained_with

Found = Mapping[str, Any]  # a comparison as JSON


@dataclass(frozen=True, slots=True)
class Evidence:
    """A study, what its last run gave (None before the first), and what was seen, in words written after the run."""

    study: Study
    found: Found | None
    seen: str


def evidence_of(root: Path, study: Study) -> Evidence:
    """What a study's folder of results holds: `comparison.json`, `measures.json` and `seen.md`, each if it is there."""
    folder = results_of(root, study)
    comparison, measures, seen = folder / "comparison.json", folder / "measures.json", folder / "seen.md"
    found = None
    if comparison.exists():
        more = json.loads(measures.read_text(encoding="utf-8")) if measures.exists() else {}
        found = {**json.loads(comparison.read_text(encoding="utf-8")), "measures": more}
    return Evidence(study, found, seen.read_text(encoding="utf-8").strip() if seen.exists() else "")


def system_page(system: System, parts: Sequence[Declaration], evidence: Sequence[Evidence]) -> str:
    """What a system is, its formula, what it needs, when to use it, and its comparisons."""
    own = [p for slot, names in system.parts.items() for p in parts if p.slot == slot and p.name in names]
    lead = [p for p in own if p.slot == "advantage"] or own
    pieces = [f"# {prose(system.title)}\n"]
    pieces += [prose(lead[0].summary) + "\n"] if lead else []
    pieces += [source(f"arXiv {system.arxiv}") + "\n"] if system.arxiv else []
    pieces += [f"$$\n{formula}\n$$\n" for formula in system.formulas]
    pieces += ["## Needs\n", _needs(own)]
    pieces += ["## When to use it\n", prose(system.when) + "\n"] if system.when else []
    pieces += ["## Parts\n", _parts(own)]
    words = trained_with(system, [each.study for each in evidence])
    pieces += ["## Recipe\n", f"    palaestra train {shlex.join(words)}\n"] if words else []
    for each in evidence:
        pieces += [f"## {prose(each.study.title)}\n", *_study(each)]
    return "\n".join(pieces)


def studies_page(evidence: Sequence[Evidence]) -> str:
    """Every study: what was expected, what was seen, with intervals."""
    head = (
        "# Studies\n\nEach line is a comparison at equal budget, several seeds a run, made by the command in its "
        "last column. Differences are paired by seed, with Student's interval at 95 %; a verdict also needs the "
        "bootstrap to agree. A relation that was not seen is kept, with the reason.\n\n"
        "Results made before the change of denominators (up to commit 56442ab, all of these unless a line says "
        "otherwise): in recipes without a regularizer, samples without an advantage were left out of mini-batches and "
        "of the denominators of the loss, so that their gradients were larger where groups had no signal.\n"
    )
    rows = [
        (
            f"[{prose(each.study.title)}](methods/{each.study.methods[0]}.md#{anchor(each.study.title)})",
            prose(each.study.expected),
            "<br>".join(_lines(each.study, each.found)) if each.found else "not run yet",
            prose(each.seen),
            f"`{each.study.command}`",
        )
        for each in evidence
    ]
    return "\n".join([head, table(("study", "expected", "arms", "seen", "command"), rows)])


def _needs(parts: Iterable[Declaration]) -> str:
    words = {
        "group": "groups of at least two trajectories a task (`rollout.group`)",
        "critic": "a policy with a critic",
        "reference": "a reference policy (`reference: start`)",
        "expert": "an environment with an expert",
        "tokens": "a policy that writes tokens",
    }
    uses = sorted({use for part in parts for use in part.uses})
    reads = sorted({column for part in parts for column in part.reads})
    lines = [f"- {words.get(use, use)}" for use in uses] + [f"- the column `{column}`" for column in reads]
    return "\n".join(lines or ["Rewards only."]) + "\n"


def _parts(parts: Iterable[Declaration]) -> str:
    rows = [
        (p.slot, f"[`{p.name}`](../parts/{p.slot}.md#{anchor(p.name)})", prose(p.summary), f"`{p.target}`")
        for p in parts
    ]
    return table(("slot", "part", "what", "where"), rows)


def _study(each: Evidence) -> list[str]:
    study, found = each.study, each.found
    pieces = [f"Expected: {prose(study.expected)}\n", f"    {study.command}\n"]
    if found is None:
        return [*pieces, "It has not been run yet.\n"]
    pieces.append(_numbers(study, found))
    if found["measures"]:
        pieces.append(_measures(found["measures"]))
    pieces += [f"Seen: {prose(each.seen)}\n"] if each.seen else []
    return [*pieces, f"![{prose(study.title)}](../images/studies/{study.name}.png)\n"]


def _numbers(study: Study, found: Found) -> str:
    rows = []
    for arm in study.arms:
        if arm not in found["arms"]:
            continue
        cells = [_interval(found["arms"][arm][what]) for what in ("final", "area")]
        own = found["differences"].get(arm)
        change = [_student(own[what]) for what in ("final", "area")] if own else ["reference", ""]
        rows.append((f"`{arm}`", cells[0], change[0], cells[1], change[1]))
    seeds = max((len(arm["seeds"]) for arm in found["arms"].values()), default=0)
    head = f"{study.metric.capitalize()} at {found['budget']:g} {found['axis'].replace('_', ' ')}, {seeds} seeds.\n\n"
    minus = f"minus `{study.reference}`"
    return head + table(("arm", "final", minus, "mean height of the curve", minus), rows)


def _measures(measures: Mapping[str, Mapping[str, Any]]) -> str:
    arms = list(dict.fromkeys(arm for per_arm in measures.values() for arm in per_arm))
    rows = [(f"`{name}`", *(_interval(per_arm.get(arm)) for arm in arms)) for name, per_arm in measures.items()]
    return "Further measures, means over all iterations:\n\n" + table(("measure", *(f"`{a}`" for a in arms)), rows)


def _lines(study: Study, found: Found) -> list[str]:
    lines = []
    for arm in study.arms:
        if arm not in found["arms"]:
            continue
        own = found["differences"].get(arm)
        change = f": {_student(own['final'])}, {own['final']['verdict']}" if own else ""
        lines.append(f"`{arm}` {_interval(found['arms'][arm]['final'])}{change}")
    return lines


def _interval(found: Mapping[str, Any] | None) -> str:
    if found is None or found.get("mean") is None:
        return "–"
    digits = 3 if abs(found["mean"]) < 100 else 1
    return f"{found['mean']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def _student(difference: Mapping[str, Any]) -> str:
    student = difference["student"]
    if student is None:
        return "–"
    return f"{student['mean']:+.3f} ({student['low']:+.3f} to {student['high']:+.3f})"
