"""The token budget:

1. A trajectory beyond its budget pays the penalty once, on its last row.
2. Each kind of task has its own budget; other kinds have the general one or none.
3. A penalty of 0 changes nothing, and padding neither counts nor pays.
4. The order of rows changes nothing.
5. Calls without a budget, without the column of kinds and with bad options are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import MissingColumn, RecipeError
from palaestra.systems.kimi_rl.token_budget import token_budget
from tests.parts.tables import quick, shuffled, tables


def three(**columns: Any) -> StepTable:
    """Trajectories of 3 + 4, 5 and 6 tokens; their kinds are short, long and none."""
    base: dict[str, Any] = {
        "group": ["g"] * 4,
        "trajectory": ["a", "a", "b", "c"],
        "agent": ["x"] * 4,
        "turn": [0, 1, 0, 0],
        "reward": [0.0, 1.0, 1.0, 0.5],
        "token_count": [3, 4, 5, 6],
        "stratum": ["short", "short", "long", None],
    }
    return StepTable(**{**base, **columns})


def test_one_budget() -> None:  # rule 1
    found = token_budget(three(), budget=5, penalty=0.5)
    assert found["token_budget"].tolist() == [0.0, -0.5, 0.0, -0.5]
    assert found["reward"].tolist() == [0.0, 0.5, 1.0, 0.0]
    assert token_budget(three(), budget=7)["token_budget"].tolist() == [0.0] * 4  # exactly the budget


def test_kinds() -> None:  # rule 2
    assert token_budget(three(), budgets={"short": 6, "long": 4})["token_budget"].tolist() == [0, -1, -1, 0]
    assert token_budget(three(), budgets={"short": 8}, budget=5)["token_budget"].tolist() == [0, 0, 0, -1]
    games = three(game=["kuhn"] * 2 + ["hex"] * 2)
    assert token_budget(games, budgets={"hex": 5}, by="game")["token_budget"].tolist() == [0, 0, 0, -1]


def test_padding() -> None:  # rule 3
    padded = three(row_weight=[1, 0, 1, 1])
    assert token_budget(padded, budget=5)["token_budget"].tolist() == [0.0, 0.0, 0.0, -1.0]


@quick
@given(tables())
def test_neutral_and_order(table: StepTable) -> None:  # rules 3, 4
    assert torch.equal(token_budget(table, budget=1, penalty=0)["reward"], table["reward"])
    order = shuffled(table, 3)
    found = token_budget(table, budget=4)["reward"]
    assert torch.equal(token_budget(table.take(order), budget=4)["reward"], found[order])


def test_bad_input() -> None:  # rule 5
    with pytest.raises(RecipeError, match="neither `budget` nor `budgets` is set"):
        token_budget(three())
    with pytest.raises(MissingColumn, match="no column `stratum`"):
        token_budget(three(stratum=None), budgets={"short": 6})
    for options in ({"budget": 0}, {"budget": 5, "penalty": -1.0}, {"budgets": {"short": -2}}):
        with pytest.raises(RecipeError, match="cannot take"):
            token_budget(three(), **options)
