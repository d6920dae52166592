"""Benchmarks of tool use at a tiny size. (1) On the simulated clock three episodes take 12 s in lock step and 10 s
without; the gain grows with turns. (2) Whether episodes wait for each other or not, the sampled tokens are the same.
(3) Weights of durations: right where slow results arrive rarely; a pool's results come as often as acts are drawn.
(4) Committed results say so too.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def async_tools(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("async_tools")


@pytest.fixture
def durations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("durations")


def test_the_simulated_clock(async_tools: ModuleType) -> None:  # rule 1
    tools = np.array([[1.0, 5.0], [3.0, 1.0], [2.0, 2.0]])
    assert (async_tools.lock_step(2.0, tools), async_tools.asynchronous(2.0, tools)) == (12.0, 10.0)
    gains = [async_tools.simulated(turns, repeats=20) for turns in (1, 2, 4, 8)]
    assert gains[0] == 1.0 and gains == sorted(gains)


def test_waiting_changes_no_token(async_tools: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    options = ["--turns", "3", "--episodes", "6", "--seconds", "0.02", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["async_tools", *options])
    async_tools.main()
    (row,) = json.loads(out.read_text())["rows"]
    assert row["same_tokens"] and row["turns"] == 3
    _, played = async_tools.play(turns=3, episodes=6, seconds=0.0, gathered=True)
    assert len({tuple(t) for t in async_tools.tokens(played)}) > 3, "tokens that are all alike would prove nothing"


def test_durations(durations: ModuleType) -> None:  # rule 3
    ends = {
        (arrivals, weighted): durations.learn(arrivals, weighted=weighted, baseline=False, seed=1, updates=200)
        for arrivals, weighted in (("rate", False), ("rate", True), ("pool", False))
    }
    assert ends["rate", False] < 0.1 and ends["rate", True] > 0.9 and ends["pool", False] > 0.9
    assert durations.frequency("rate", count=4000) == pytest.approx(1 / 21, abs=0.02)
    assert durations.frequency("pool", count=4000) == pytest.approx(0.5, abs=0.04)


def test_committed_results() -> None:  # rule 4
    ends = json.loads((FOLDER / "results" / "durations.json").read_text())["probability of B at the end"]
    low = {name for name, value in ends.items() if value < 0.5}
    assert low == {"rate, no baseline, plain"}
    rows = json.loads((FOLDER / "results" / "async_tools.json").read_text())["rows"]
    assert all(row["same_tokens"] for row in rows)
    assert rows[-1]["simulated_speed_up"] > rows[0]["simulated_speed_up"] and rows[-1]["speed_up"] > 1
