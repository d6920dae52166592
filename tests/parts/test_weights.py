"""Weights: (1) equal policies give exactly 1; (2) no weight is above the cap, and a mask is 0 or 1; (3) sequence and
geometric weights are one number per trajectory; (4) one token a trajectory makes all levels the same; (5) tokens that
no trained policy judges get 1, half-known tokens are refused; (6) products are checked, floors spare masks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import segment_range
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.importance import ones, truncated_importance
from palaestra.training.stages import combine
from tests.messages import told
from tests.parts.tables import quick, tables

LEVELS = ("token", "sequence", "geometric")


@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables())
def test_equal_policies(level: Any, table: StepTable) -> None:  # rule 1
    same = table.replace(logprob_behavior=table["logprob_old"])
    for mode in ("truncate", "mask"):
        assert bool((truncated_importance(same, level=level, mode=mode) == 1).all())


@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables())
def test_cap(level: Any, table: StepTable) -> None:  # rule 2
    weight = truncated_importance(table, level=level, cap=1.5)
    assert bool(((weight > 0) & (weight <= 1.5)).all())
    assert set(truncated_importance(table, level=level, mode="mask").tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("level", LEVELS[1:])
@quick
@given(table=tables())
def test_one_number_per_trajectory(level: Any, table: StepTable) -> None:  # rule 3
    key = table.key("trajectory").spread(table.token_row)
    assert bool((segment_range(truncated_importance(table, level=level), by=key) == 0).all())


@quick
@given(tables(one_token=True, one_row=True))
def test_levels_agree_on_one_token(table: StepTable) -> None:  # rule 4
    first, *others = [truncated_importance(table, level=level) for level in LEVELS]
    assert all(torch.allclose(first, other) for other in others)


def table(**columns: Any) -> StepTable:
    base = {"group": ["g"] * 2, "trajectory": [0, 1], "agent": ["x"] * 2, "turn": [0, 0], "reward": [0.0] * 2}
    return StepTable(**{**base, **columns})


def test_tokens_of_others() -> None:  # rule 5
    mixed = table(logprob_behavior=[-1.0, torch.nan], logprob_old=[-2.0, torch.nan])
    assert truncated_importance(mixed).tolist() == [pytest.approx(0.3679, abs=1e-4), 1.0]
    with told(InvalidData, "log-probability"):
        truncated_importance(table(logprob_behavior=[-1.0, torch.nan], logprob_old=[-2.0, -1.0]))


def test_bad_input() -> None:  # rule 5
    with pytest.raises(MissingColumn, match="logprob_behavior"):
        truncated_importance(table(logprob_old=[-1.0, -1.0]))
    with pytest.raises(InvalidData, match="positive"):
        truncated_importance(table(logprob_behavior=[0.5, -1.0], logprob_old=[-1.0, -1.0]))
    both = table(logprob_behavior=[-1.0, -1.0], logprob_old=[-1.0, -1.0])
    with pytest.raises(RecipeError, match="cap"):
        truncated_importance(both, cap=0.0)
    with told(RecipeError, "`cap: 2`"):
        truncated_importance(both, mode="mask", low=3.0)
    far = table(logprob_behavior=[-900.0, -1.0], logprob_old=[-1.0, -900.0])
    assert truncated_importance(far, level="sequence").tolist() == [2.0, 0.0]


def test_products() -> None:  # rule 6
    two = table(token_count=[2, 1])
    rows, tokens = torch.tensor([2.0, 0.5]), torch.tensor([1.0, 0.0, 1.0])
    assert combine([], two).tolist() == [1.0] * 3
    assert combine([ones(two)], two).tolist() == [1.0] * 3
    assert combine([rows, tokens], two).tolist() == [2.0, 0.0, 0.5]
    assert combine([rows, tokens], two, floor=0.75).tolist() == [2.0, 0.0, 0.75]
    with told(InvalidData, "1 of 3"):
        combine([torch.tensor([1.0, -0.5])], two)
    with pytest.raises(InvalidData, match="not finite"):
        combine([rows, torch.tensor([1.0, torch.inf, 1.0])], two)
    with told(InvalidData, "2 rows nor"):
        combine([torch.ones(7)], two)


def test_weights_carry_no_gradient() -> None:
    factor = torch.ones(2, requires_grad=True)
    assert not combine([factor], table()).requires_grad
