"""Durations as weights:

1. The mean over rows that count is 1, whatever their order and the padding.
2. Equal durations and `normalize: none` give the weight 1, bit for bit.
3. Wall time can be used in place of the environment's durations.
4. A duration that is missing or not above 0 is refused, unless `limit` replaces it for an act that was cut off.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.importance import ones
from palaestra.systems.duration_aware.duration import duration
from palaestra.training.stages import combine
from tests.parts.tables import quick, shuffled, tables


def timed(table: StepTable) -> StepTable:
    return table.replace(duration=(torch.arange(len(table)) % 5 + 1).float())


@quick
@given(table=tables())
def test_the_mean_is_one(table: StepTable) -> None:  # rule 1
    table, order = timed(table), shuffled(table, 3)
    weight = duration(table)
    assert float(weight.mean()) == pytest.approx(1.0, abs=1e-5)
    assert torch.allclose(duration(table.take(order)), weight[order], rtol=1e-6)
    counts = (torch.arange(len(table)) > 0).float()
    padded = duration(table.replace(row_weight=counts, duration=torch.where(counts > 0, table["duration"], 0.0)))
    assert float(padded[0]) == 0.0
    rest: Tensor = table["duration"][1:]
    assert torch.allclose(padded[1:], rest / rest.mean() if len(rest) else rest)


@quick
@given(table=tables())
def test_neutral(table: StepTable) -> None:  # rule 2
    same = table.replace(duration=torch.full((len(table),), 0.3))
    assert torch.equal(duration(same), ones(table))
    assert torch.equal(duration(timed(table), normalize="none"), ones(table))
    assert torch.equal(combine([duration(same)], table), combine([ones(table)], table))


def two(**columns: object) -> StepTable:
    return StepTable(group=["g"] * 2, trajectory=["a", "b"], agent=["x"] * 2, turn=[0, 3], reward=[0.0] * 2, **columns)


def test_wall_time() -> None:  # rule 3
    assert duration(two(seconds=[1.0, 3.0]), column="seconds").tolist() == [0.5, 1.5]


def test_bad_input() -> None:  # rule 4
    with pytest.raises(MissingColumn, match=r"no column `duration`(.|\n)*column=seconds"):
        duration(two())
    for took in ([1.0, 0.0], [1.0, -2.0]):
        with pytest.raises(InvalidData, match=r"trajectory b, turn 3(.|\n)*1 of 2 rows(.|\n)*limit"):
            duration(two(duration=took))
    cut = two(duration=[1.0, 0.0], truncated=[False, True])
    assert duration(cut, limit=3.0).tolist() == [0.5, 1.5]
    with pytest.raises(InvalidData, match="trajectory b"):
        duration(two(duration=[1.0, 0.0], truncated=[False, False]), limit=3.0)
    with pytest.raises(RecipeError, match="limit"):
        duration(two(duration=[1.0, 1.0]), limit=0.0)
