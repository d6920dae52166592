"""The reward `hierarchical`: (1) a malformed rollout or call earns exactly 0; (2) each rollout and each call has one
reward, on its last row in time; (3) missing outcomes and scores, other formats and calls without a parent are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.m_grpo.hierarchical import hierarchical
from palaestra.systems.m_grpo.test_advantage import team
from tests.parts.tables import close, quick, shuffled


def judged(**columns: Any) -> StepTable:
    """Two rollouts; the first calls twice, the second once; two rows a call."""
    fine = {"format": [1.0] * 8, "outcome": [1.0] * 5 + [0.0] * 3, "expert": [0, 0, 1, 0, 0, 0, 0, 1.0]}
    return team([2, 1], [9.0] * 3, rows=2, **{**fine, **columns})


@quick
@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_malformed_earns_nothing(sound: list[bool]) -> None:  # rule 1
    found = hierarchical(judged(format=[float(x) for x in sound])).tolist()
    for rows in ([0], [1, 2], [3, 4], [5], [6, 7]):
        assert (sum(found[row] for row in rows) > 0) == all(sound[row] for row in rows)


def test_one_reward_on_the_last_row() -> None:  # rule 2
    expected = [1, 0, 1, 0, 0.5, 0.1, 0, 0.6]
    assert close(hierarchical(judged()), expected)
    order = shuffled(judged(), 3)
    assert close(hierarchical(judged().take(order)), torch.tensor(expected)[order])
    cut = judged(row_weight=[1, 1, 0, 1, 1, 1, 1, 1])  # the row with the judge's score is dropped
    assert close(hierarchical(cut), [1, 0.5, 0, 0, 0.5, 0.1, 0, 0.6])
    assert close(hierarchical(judged(expert=None), sub_expert=0)[1:5], [0, 0.5, 0, 0.5])


def test_what_hierarchical_refuses() -> None:  # rule 3
    with pytest.raises(InvalidData, match=r"trajectory t1(.|\n)*it has no outcome"):
        hierarchical(judged(outcome=[1.0] * 5 + [float("nan")] * 3))
    with pytest.raises(InvalidData, match=r"it is 0.5; it must be 0 or 1"):
        hierarchical(judged(format=[0.5] + [1.0] * 7))
    with pytest.raises(MissingColumn, match="no score of them"):
        hierarchical(judged(expert=None))
    with pytest.raises(MissingColumn, match="format"):
        hierarchical(team([1], [0.5], outcome=[1.0, 1.0]))
    with pytest.raises(InvalidData, match="parent is none"):
        hierarchical(judged(parent=[None] * 8), main="main")
    with pytest.raises(RecipeError, match="main_format"):
        hierarchical(judged(), main_format=-1)
