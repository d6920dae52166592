"""The reward `dense_normalized`:

1. A win is worth 1, a loss its share of the game's maximum; one reward at the win stays as it is.
2. Games without a maximum or an outcome are refused.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palaestra.data import StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.multi_turn_guide import dense_normalized


def game(rewards, outcome, **columns):
    size = len(rewards)
    return StepTable(group=["g"] * size, trajectory=[0] * size, agent=["x"] * size, turn=range(size), reward=rewards,
                     outcome=[outcome] * size, **columns)  # fmt: skip


def test_wins_are_worth_one():  # rule 1
    third = 1 / 3
    assert dense_normalized(game([1, 0, 1, 1], 1.0), maximum=3).tolist() == pytest.approx([third, 0, third, third])
    assert dense_normalized(game([1, 0, 1, 0], 0.0), maximum=5).tolist() == pytest.approx([0.2, 0, 0.2, 0])
    told = game([1, 0, 1, 0], 0.0, maximum=[5.0] * 4)
    assert torch.equal(dense_normalized(told), dense_normalized(told, maximum=5))
    assert dense_normalized(game([0, 0], 1.0), maximum=3).tolist() == [0, 0], "no positive reward divides by 1"
    assert dense_normalized(game([0.25, -1, 0.5], 1.0), maximum=9).tolist() == [0.5, 0, 0.5]
    other = game([0.0, 0.0], 0.0, progress=[1.0, 1.0])
    assert dense_normalized(other, maximum=4, column="progress").tolist() == [0.25, 0.25]
    padded = game([1, 1, 1], 1.0, row_weight=[1.0, 1.0, 0.0])
    assert dense_normalized(padded, maximum=3).tolist() == [0.5, 0.5, 0]


def test_single_rewards_stay_as_they_are():  # rule 1: one reward, at the win, is what the environment gave
    for outcome, last in ((1.0, 1.0), (0.0, 0.0)):
        table = game([0.0, 0.0, last], outcome)
        assert torch.equal(dense_normalized(table, maximum=1), table["reward"])


def test_bad_games_are_refused():  # rule 2
    with pytest.raises(InvalidData, match="neither the option nor the column `maximum`") as caught:
        dense_normalized(game([1, 0], 1.0))
    assert "Set `maximum`" in caught.value.remedy
    with pytest.raises(InvalidData, match="`maximum` is 0, below 1"):
        dense_normalized(game([1, 0], 1.0, maximum=[0.0, 0.0]))
    with pytest.raises(InvalidData, match="2 of 2 rows have no outcome"):
        dense_normalized(game([1, 0], np.nan), maximum=2)
    with pytest.raises(RecipeError, match="maximum"):
        dense_normalized(game([1, 0], 1.0), maximum=0)
