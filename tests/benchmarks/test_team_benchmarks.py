"""Benchmarks of teams run at a tiny size: (1) policies of their own do the same work as a shared one and as adapters;
(2) free and in lock step the same acts are made, and free is not slower where episodes differ; (3) committed results
keep the limits that they name.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a benchmark with cases of one's own, returns what it writes."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def start(name: str, cases: dict[str, Any], *options: str) -> dict[str, Any]:
        module: ModuleType = importlib.import_module(name)
        monkeypatch.setattr(module, "CASES", cases)
        out = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", [name, "--out", str(out), "--repeats", "1", *options])
        module.main()
        return json.loads(out.read_text())["cases"]  # type: ignore[no-any-return]

    return start


@pytest.mark.slow
def test_separate_policies(run: Run) -> None:  # rule 1
    tiny = {"hidden": 16, "layers": 1, "heads": 2, "context": 128, "vocabulary": 300}
    found = run("separate_policies", {"tiny": {"model": tiny, "order": "routed", "minibatches": 1, "tasks": 1}})
    for arm in ("shared", "separate", "adapters"):
        assert found["tiny"][arm]["seconds"]["update wall"] > 0
    assert found["tiny"]["shared"]["times_shared"]["iteration wall"] == 1.0


def test_lockstep(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 2
    case = {"share": 0.4, "turns": (1, 4), "episodes": 12, "fast": "served"}
    found = run("lockstep", {"few": case}, "--wall-repeats", "1")["few"]["idle"]
    assert found["acts"]["planner"] == found["acts"]["writer"] > found["acts"]["searcher"] > 0
    assert found["times_faster"] > 1.1


def test_committed_results() -> None:  # rule 3
    costs = json.loads((FOLDER / "results/separate_policies/costs.json").read_text())
    ratios = costs["cases"]["in order"]["separate"]["times_shared"]
    assert max(ratios[f"{what} {clock}"] for what in ("update", "iteration") for clock in ("wall", "processor")) <= 1.15
    lockstep = json.loads((FOLDER / "results/lockstep/throughput.json").read_text())
    assert lockstep["cases"]["sometimes"]["idle"]["times_faster"] >= lockstep["limit"] == 3.0
