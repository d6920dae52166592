"""How far a system goes, computed from the files of its folder.

    works    no part of the paper is absent, and `results/run.json` holds the success of a run on held-out tasks of no
             probe, with a pretrained policy if the paper is about language models
    learns   a study of it has a verdict
    formula  its golden numbers lie in the folder
    runs     it has a recipe or an overlay

The build of a wheel imports this file by its path, so it uses the standard library only. Studies, results and golden
numbers are not in a wheel, whose index stores each status.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

LEVELS = {
    "works": "the whole system of the paper, with a committed run on held-out tasks",
    "learns": "a study of it has a verdict",
    "formula": "its golden numbers pass",
    "runs": "it has a recipe",
}
RUN = Path("results", "run.json")  # which benchmarks/recipe_runs.py writes
WITHOUT_VERDICT = ("not measured", "too few seeds")
PROBES = "palaestra.envs.probes."
FEWEST = 64  # held-out tasks of a run that counts


def probes_among(environments: Mapping[str, str]) -> frozenset[str]:
    """The environments that are small diagnostic worlds.

    Args:
        environments: name → `module:attribute`.
    """
    return frozenset(name for name, target in environments.items() if target.startswith(PROBES))


def status_of(folder: Path, described: Mapping[str, Any], probes: Collection[str]) -> str:
    """A key of `LEVELS`.

    Args:
        folder: of the system. described: the content of its `system.yaml`.
        probes: names of environments that are small diagnostic worlds, which are no realistic task.
    """
    if not missing(folder, described, probes):
        return "works"
    findings = str(described.get("findings", ""))
    if any(not clause.startswith(WITHOUT_VERDICT) for clause in findings.split("; ") if clause):
        return "learns"
    return "formula" if (folder / "golden.yaml").exists() else "runs"


def missing(folder: Path, described: Mapping[str, Any], probes: Collection[str]) -> list[str]:
    """What a system lacks to work, each in one line; empty, if it works."""
    paper = described.get("paper", {})
    lines = [] if paper else ["`paper` in system.yaml does not say of what parts the paper consists"]
    lines += [f"{name} is absent: {part['absent']}" for name, part in paper.items() if "absent" in part]
    run = _run(folder)
    if run is None:
        return [*lines, f"no run is committed ({RUN})"]
    if run.get("environment") in probes:
        lines.append(f"its run plays `{run['environment']}`, a probe")
    if described.get("language", True) and not run.get("models"):
        lines.append("its run has no pretrained model")
    evaluations = run.get("evaluations", ())
    if not any(key.endswith("/tasks") and value >= FEWEST for line in evaluations for key, value in line.items()):
        lines.append(f"its run has no evaluation on {FEWEST} held-out tasks")
    return lines


def _run(folder: Path) -> dict[str, Any] | None:
    """The committed run of a system; None, if there is none."""
    if not (folder / RUN).exists():
        return None
    return dict(json.loads((folder / RUN).read_text(encoding="utf-8")))
