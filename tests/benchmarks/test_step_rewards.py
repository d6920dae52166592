"""The benchmark of learned step rewards runs at a tiny size and tells kinds of steps apart."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from palaestra.data import StepTable

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_kinds_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("step_rewards")
    table = StepTable(group=["g"] * 6, trajectory=[1, 1, 1, 1, 2, 2], agent=["x"] * 6, turn=[0, 1, 2, 3, 0, 1],
                      reward=[0, 0, 0, 1, 0, 0], progress=[0.0, 1, 2, 2, 1, 1], executable=[1, 1, 1, 1, 1, 0],
                      terminated=[False, False, False, True, False, False])  # fmt: skip
    kinds = {kind: rows.nonzero()[:, 0].tolist() for kind, rows in module.kinds_of(table).items()}
    assert kinds == {"key": [1, 4], "door": [2], "goal": [3], "move": [0], "impossible": [5]}


@pytest.mark.slow
def test_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("step_rewards")
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["step_rewards", "--iterations", "2", "--episodes", "8", "--out", str(out)])
    module.main()
    found = json.loads(out.read_text())["mean reward"]
    assert set(found) == {"oprl", "spa"} and set(found["spa"]) == {"start", "end"}
