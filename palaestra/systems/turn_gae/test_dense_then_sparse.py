"""The reward `dense_then_sparse`: (1) each new highest progress pays once, in any order of rows; (2) from the given
iteration on only success pays; (3) tables without outcome or progress are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.systems.turn_gae.dense_then_sparse import dense_then_sparse
from tests.parts.small_tables import NAN, at
from tests.parts.tables import quick, shuffled, tables


def climbing(**columns: Any) -> StepTable:
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["x"] * 6,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0.0] * 6,
        "progress": [1.0, 0.0, 1.0, 2.0, 0.0, 1.0],
        "outcome": [1.0] * 4 + [0.0] * 2,
        "invalid": [False, True, False, False, False, False],
    }
    return StepTable(**{**base, **columns})


def test_progress() -> None:  # rules 1 and 2
    early, late = at(4), at(5)
    assert dense_then_sparse(climbing(), early, dense=5).tolist() == [1.0, -0.5, 0.0, 4.0, 0.0, 1.0]
    assert dense_then_sparse(climbing(), late, dense=5).tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    assert (early.metrics, late.metrics) == ({"reward/dense": 1.0}, {"reward/dense": 0.0})
    silent = dense_then_sparse(climbing(invalid=None), at(), progress=0.0)
    assert silent.tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]


@quick
@given(tables(), st.integers(0, 10**6))
def test_each_height_pays_once(table: StepTable, seed: int) -> None:  # rule 1
    dice = torch.Generator().manual_seed(seed)
    table = table.replace(progress=torch.randint(-2, 4, (len(table),), generator=dice).float())
    paid = dense_then_sparse(table, at(), success=0.0)
    heights: dict[int, float] = {}
    expected = torch.zeros(len(table))
    for row in sorted(range(len(table)), key=lambda r: int(table["turn"][r])):
        name, here = int(table["trajectory"][row]), float(table["progress"][row])
        expected[row] = float(here > heights.get(name, 0.0))
        heights[name] = max(heights.get(name, 0.0), here)
    assert torch.equal(paid, expected)
    order = shuffled(table, seed)
    assert torch.equal(dense_then_sparse(table.take(order), at(), success=0.0), paid[order])


def test_what_it_needs() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="progress"):
        dense_then_sparse(climbing(progress=None), at())
    with pytest.raises(InvalidData, match="1 of 2 trajectories have no outcome"):
        dense_then_sparse(climbing(outcome=[1.0] * 4 + [NAN] * 2), at())
