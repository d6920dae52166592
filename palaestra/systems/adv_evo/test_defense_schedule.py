"""The defenders' reward: (1) safety weighs more before the switch and the task after it, for one team only."""

from __future__ import annotations

from typing import Any

import pytest

from palaestra.data import StepTable
from palaestra.systems.adv_evo.defense_schedule import defense_schedule
from tests.parts.small_tables import at

ROWS: dict[str, Any] = {
    "group": ["g"] * 4,
    "trajectory": ["a"] * 4,
    "agent": ["x", "d", "e", "d"],
    "turn": [0, 1, 2, 3],
    "reward": [1.0, 0.0, 0.0, 0.5],
}
JUDGED = {
    "team": ["attackers", "defenders", "defenders", "defenders"],
    "safe": [0.0, 0.0, 1.0, 0.0],
    "correct": [0.0, 0.0, 0.0, 1.0],
    "format": [1.0, 0.0, 1.0, 1.0],
}


def test_the_schedule_turns() -> None:  # rule 1
    table = StepTable(**ROWS, **JUDGED)
    for step in (0, 9):
        assert defense_schedule(table, at(step), switch=10).tolist() == pytest.approx([1.0, 0.0, 0.7, 0.4])
    assert defense_schedule(table, at(10), switch=10).tolist() == pytest.approx([1.0, 0.0, 0.4, 0.7])
    other = defense_schedule(table, at(0), switch=1, team="attackers", first=(0, 0, 2))
    assert other.tolist() == [2.0, 0.0, 0.0, 0.5]
