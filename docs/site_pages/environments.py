"""The list of environments, with measured success of expert and random play, and the list of committed panels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from site_pages.markdown import anchor, code, prose, table

from palaestra.catalogue import Declaration

KINDS = (  # where a module lies → heading, what is below it
    ("palaestra.envs.worlds", "Worlds", "They need no other package, but for an extra where one is named."),
    ("palaestra.envs.adapters", "Adapters", "They play what other packages or programs provide."),
    ("palaestra.envs.probes", "Small worlds for studies", "Several systems use them."),
    ("palaestra.systems", "Worlds of a single system", "They lie in the folder of the system that uses them."),
    ("palaestra", "For tests", ""),
)
HEAD = """# What environments there are

`palaestra envs` prints this list, `palaestra envs NAME` describes an environment with its options, and
`palaestra play NAME` plays it. The columns "expert" and "random" are the shares of 500 evaluation tasks with default
options that the expert solves and that random legal actions solve. `python benchmarks/worlds.py NAME` measures them. A
dash means: not measured. An environment of your own is used like these ([environments](environments.md)).
"""
PANELS = """## Panels

A [panel](environments.md#evaluation-panels) is a fixed list of evaluation tasks. "overlap" is the share of its tasks
whose problem occurs in 2,000 training tasks; 1 means that the environment has few different problems, as some games do.
A dash means that the environment does not tell its problems apart.
"""


def environments_page(root: Path, parts: Sequence[Declaration]) -> str:
    """All registered environments by kind, then the panels."""
    left = [part for part in parts if part.slot == "environment"]
    pieces = [HEAD]
    for place, title, text in KINDS:
        chosen = [part for part in left if part.target.startswith(place)]
        left = [part for part in left if part not in chosen]
        rows = [_row(root, part) for part in sorted(chosen, key=lambda part: part.name)]
        head = ("environment", "what it is", "expert", "random", "extra")
        pieces += [f"## {title}\n", f"{text}\n" if text else "", table(head, rows)]
    panels = json.loads((root / "palaestra/envs/kit/panels.json").read_text(encoding="utf-8"))
    rows = [_panel(name, panel) for name, panel in panels.items()]
    head = ("panel", "environment and options", "tasks", "overlap", "hash of tasks", "hash of first observations")
    return "\n".join([*(piece for piece in pieces if piece), PANELS, table(head, rows)])


def _row(root: Path, part: Declaration) -> tuple[str, ...]:
    page = root / "docs/environments" / f"{part.name}.md"
    options = f"parts/environment.md#{anchor(part.name)}"
    link = f"[`{part.name}`](environments/{page.name})" if page.exists() else f"[`{part.name}`]({options})"
    file = root / "benchmarks/results/worlds" / f"{part.name}.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    shares = [f"{found[who]['success'][0]:.2f}" if who in found else "–" for who in ("expert", "random")]
    return (link, prose(part.summary), *shares, code(part.extra) or "–")


def _panel(name: str, panel: Mapping[str, Any]) -> tuple[str, ...]:
    options = ", ".join(f"{key} {json.dumps(value)}" for key, value in panel["options"].items())
    overlap = "–" if panel.get("overlap") is None else f"{panel['overlap']:g}"
    hashes = [code(panel[key]) for key in ("hash", "first")]
    text = panel["environment"] + (f": {options}" if options else "")
    return (code(name), code(text), str(panel["n"]), overlap, *hashes)
