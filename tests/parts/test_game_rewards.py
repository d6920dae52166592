"""Rewards of games: (1) a legal turn earns its form, an illegal one pays, and nothing else changes; (2) brevity is paid
in full up to `shortest` and not at all from `longest` on; (3) what cannot be is refused, also of a defense's schedule.
"""

from __future__ import annotations

from typing import Any

import pytest

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.games import game_shaping
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


def test_form_is_paid() -> None:  # rule 1
    legal = game_shaping(StepTable(**ROWS), length=0.0)
    assert legal.tolist() == pytest.approx([1.05, 0.05, 0.05, 0.55])
    found = game_shaping(StepTable(**ROWS, illegal=[0, 0, 0, 1], invalid=[0, 0, 1, 0]), length=0.0)
    assert found.tolist() == pytest.approx([1.05, 0.05, -10.0, -9.5])
    nothing = game_shaping(StepTable(**ROWS), format=0.0, illegal=0.0, length=0.0)
    assert nothing.tolist() == ROWS["reward"]


def test_brevity_is_paid() -> None:  # rule 2
    table = StepTable(**{**ROWS, "reward": [0.0] * 4}, token_count=[1, 11, 2048, 4000])
    assert game_shaping(table, format=0.0).tolist() == [0.5, 0.5, 0.0, 0.0]
    half = StepTable(**{**ROWS, "reward": [0.0] * 4}, token_count=[20, 20, 20, 30])
    assert game_shaping(half, format=0.0, shortest=10, longest=30).tolist() == [0.25, 0.25, 0.25, 0.0]


def test_refusals() -> None:  # rule 3
    with pytest.raises(RecipeError, match=r"shortest 11 is not below longest 11"):
        game_shaping(StepTable(**ROWS), longest=11)
    with pytest.raises(RecipeError, match="illegal"):
        game_shaping(StepTable(**ROWS), illegal=-1.0)
    with pytest.raises(RecipeError, match="switch"):
        defense_schedule(StepTable(**ROWS, **JUDGED), at(), switch=0)
    with pytest.raises(InvalidData, match=r"no row has the team `guards`(.|\n)*defenders"):
        defense_schedule(StepTable(**ROWS, **JUDGED), at(), switch=1, team="guards")
    with pytest.raises(InvalidData, match=r"is outside \[0, 1\]"):
        defense_schedule(StepTable(**ROWS, **{**JUDGED, "safe": [2.0] * 4}), at(), switch=1)
    with pytest.raises(MissingColumn, match="safe"):
        defense_schedule(StepTable(**ROWS), at(), switch=1)
