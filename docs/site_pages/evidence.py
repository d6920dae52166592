"""Pages of evidence: one for each system with its formula and its studies, and the table of all studies."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from site_pages.markdown import anchor, code, prose, source, table

from palaestra.catalogue import Declaration, Study, System
from palaestra.catalogue.findings import NOT_MEASURED, VERDICTS, Finding, Results, interval, with_student
from palaestra.catalogue.formulas import in_a_terminal
from palaestra.catalogue.status import LEVELS
from palaestra.catalogue.studies import results_of, trained_with

NOT_RUN = "not run yet"
COLUMNS = ("study", "system", "claim", "setup", "difference, or both values, with interval")
STUDIES = """# Studies

A study compares methods at equal budget, to test what a system claims. Each line links to the system's page, which has
what was expected, every arm, every interval and what was seen. `python benchmarks/studies.py NAME` runs a study again.
The *claim* is a relation between two arms. The numbers are the difference of the final values with Student's interval
at 95 %, paired by seed. For a claim about another measure, named before the colon, they are the means of both arms with
bootstrap intervals. [Evidence](evidence.md#verdicts) says how the verdict follows from the numbers.

Results up to commit 56442ab, which is all of these unless a line says otherwise, are from before a change of
denominators. In recipes without a regularizer, samples without an advantage were then left out of mini-batches and of
the denominators of the loss. So gradients were larger where groups had no signal.
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A study, what its last run gave (None before the first), and what was seen, in words written after the run."""

    study: Study
    results: Results | None
    seen: str

    @property
    def verdict(self) -> str:
        """On all of the study's claims."""
        return self.results.verdict if self.results else NOT_RUN


def evidence_of(root: Path, study: Study) -> Evidence:
    """What a study's folder of results holds; the numbers of `seen.md` are filled in from its JSON."""
    results, seen = Results.read(root, study), results_of(root, study) / "seen.md"
    text = seen.read_text(encoding="utf-8").strip() if seen.exists() else ""
    return Evidence(study, results, results.filled(text) if results else text)


def system_page(system: System, parts: Sequence[Declaration], evidence: Sequence[Evidence]) -> str:
    """What a system is, its formula, what it needs, when to use it, and its comparisons."""
    own = [p for slot, names in system.parts.items() for p in parts if p.slot == slot and p.name in names]
    lead = [p for p in own if p.slot == "advantage"] or own
    pieces = [f"# {prose(system.title)}\n"]
    pieces += [prose(lead[0].summary) + "\n"] if lead else []
    pieces += [source(f"arXiv {system.arxiv}") + "\n"] if system.arxiv else []
    pieces += [f"Also: {prose(', '.join(system.aliases))}.\n"] if system.aliases else []
    found = f" Studies: {prose(system.findings)}." if system.findings else ""
    pieces.append(f"Status: {system.status}, {LEVELS[system.status]}.{found}\n")
    pieces += [f"$$\n{formula}\n$$\n" for formula in system.formulas]
    pieces += [f"- {code(in_a_terminal(symbol))}: {prose(meaning)}" for symbol, meaning in system.symbols.items()]
    pieces += [""] if system.symbols else []
    pieces += ["## Parts of the paper\n", _paper(system)] if system.paper else []
    pieces += ["## Needs\n", _needs(own)]
    pieces += ["## When to use it\n", prose(system.when) + "\n"] if system.when else []
    pieces += ["## Parts\n", _parts(own)]
    words = trained_with(system, [each.study for each in evidence])
    pieces += ["## Recipe\n", f"    palaestra train {shlex.join(words)}\n"] if words else []
    for each in evidence:
        pieces += [f"## {prose(each.study.title)} {{#{each.study.name}}}\n", *_study(each)]
    return "\n".join(pieces)


def _paper(system: System) -> str:
    """What the paper consists of, and where each part is."""
    rows = [(part.replace("_", " "), state, prose(line)) for part, where in system.paper.items()
            for state, line in where.items()]  # fmt: skip
    return table(("part", "where", "what"), rows)


def studies_page(evidence: Sequence[Evidence], systems: Sequence[System]) -> str:
    """A line for each study, by verdict: its system, its first claim, the setup and the difference."""
    titles = {system.name: system.title for system in systems}
    pieces = [STUDIES]
    for verdict in (*VERDICTS, NOT_RUN):
        chosen = [each for each in evidence if each.verdict == verdict]
        if chosen:
            pieces += [
                f"## {verdict.capitalize()}: {len(chosen)}\n",
                table(COLUMNS, [_line(e, titles) for e in chosen]),
            ]
    return "\n".join(pieces)


def _line(each: Evidence, titles: Mapping[str, str]) -> tuple[str, ...]:
    study = each.study
    link = f"[{study.name}](methods/{study.methods[0]}.md#{study.name})"
    more = f" and {len(study.claims) - 1} more" if len(study.claims) > 1 else ""
    title = prose(titles[study.methods[0]].partition(",")[0].partition(" (")[0])
    setup = Path(study.setup).with_suffix("").as_posix().removeprefix("setups/").removesuffix("/recipe")
    return (link, title, f"`{study.claims[0]}`{more}", f"`{setup}`", _first(each))


def _first(each: Evidence) -> str:
    """The numbers of the first claim."""
    finding = each.results.findings()[0] if each.results else None
    return prose(finding.final) or finding.outcome if finding else ""


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
    study, results = each.study, each.results
    pieces = [f"Expected: {prose(study.expected)}\n", f"    {study.command}\n"]
    pieces += [f"Not tested by any arm: {prose(study.untested)}.\n"] if study.untested else []
    if results is None:
        return [*pieces, "It has not been run yet.\n"]
    pieces += [f"**Verdict: {results.verdict}.**\n", _claims(results.findings())]
    pieces += [f"{prose(each.seen)}\n"] if each.seen else []
    pieces.append(_numbers(study, results))
    if results.measures:
        pieces.append(_measures(results.measures))
    return [*pieces, f"![{prose(study.title)}](../images/studies/{study.name}.png)\n", _caption(study, results)]


def _claims(findings: Sequence[Finding]) -> str:
    rows = [(f"`{each.claim}`", prose(each.final), prose(each.height), each.outcome) for each in findings]
    return table(("claim", "final value, or mean of a measure", "mean height of the curve", "the numbers say"), rows)


def _numbers(study: Study, results: Results) -> str:
    rows = []
    for arm in (name for name in study.arms if name in results.comparison["arms"]):
        if not results.measured(arm):
            rows.append((f"`{arm}`", NOT_MEASURED, "", NOT_MEASURED, ""))
            continue
        cells = [prose(interval(results.arm(arm)[what])) for what in ("final", "area")]
        change = ["reference", ""]
        if arm != study.reference:
            known = results.measured(study.reference)
            change = [prose(with_student(results.difference(arm, study.reference, what))) for what in ("final", "area")]
            change = change if known else [NOT_MEASURED, NOT_MEASURED]
        rows.append((f"`{arm}`", cells[0], change[0], cells[1], change[1]))
    found = results.comparison
    seeds = max((len(arm["seeds"]) for arm in found["arms"].values()), default=0)
    head = f"{study.metric.capitalize()} at {found['budget']:g} {found['axis'].replace('_', ' ')}, {seeds} seeds.\n\n"
    minus = f"minus `{study.reference}`"
    return head + table(("arm", "final", minus, "mean height of the curve", minus), rows)


def _measures(measures: Mapping[str, Mapping[str, Any]]) -> str:
    arms = list(dict.fromkeys(arm for per_arm in measures.values() for arm in per_arm))
    cells = {
        name: [prose(interval(per_arm[arm])) if arm in per_arm else "–" for arm in arms]
        for name, per_arm in measures.items()
    }
    rows = [(f"`{name}`", *values) for name, values in cells.items()]
    return "Further measures, means over all iterations:\n\n" + table(("measure", *(f"`{a}`" for a in arms)), rows)


def _caption(study: Study, results: Results) -> str:
    """What the plot shows, and what it does not."""
    text = "Means over seeds with a bootstrap band; between evaluations the curves are straight."
    unmeasured = [f"`{arm}`" for arm in study.arms if not results.measured(arm)]
    if unmeasured:
        text += f" Of {' and '.join(unmeasured)} only the first point is a measurement that lies inside of the plot."
    return f"*{text}*\n"
