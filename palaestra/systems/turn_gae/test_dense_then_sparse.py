"""Dense, then sparse: (1) progress pays once for each new height, in any order of rows; (2) from the given iteration on
only success pays; (3) without an outcome or progress nothing can be paid.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.systems.turn_gae.dense_then_sparse import DenseThenSparse
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
    reward = DenseThenSparse(dense=5)
    assert reward(climbing(), at(4)).tolist() == [1.0, -0.5, 0.0, 4.0, 0.0, 1.0]
    assert reward.learn(climbing(), at(4)) == {"reward/dense": 1.0}
    assert reward(climbing(), at(5)).tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    assert reward.learn(climbing(), at(5)) == {"reward/dense": 0.0}
    assert DenseThenSparse(progress=0.0)(climbing(invalid=None), at()).tolist() == [
        0.0,
        0.0,
        0.0,
        3.0,
        0.0,
        0.0,
    ]


@quick
@given(tables(), st.integers(0, 10**6))
def test_each_height_pays_once(table: StepTable, seed: int) -> None:  # rule 1
    dice = torch.Generator().manual_seed(seed)
    table = table.replace(progress=torch.randint(-2, 4, (len(table),), generator=dice).float())
    paid = DenseThenSparse(success=0.0)(table, at())
    heights: dict[int, float] = {}
    expected = torch.zeros(len(table))
    for row in sorted(range(len(table)), key=lambda r: int(table["turn"][r])):
        name, here = int(table["trajectory"][row]), float(table["progress"][row])
        expected[row] = float(here > heights.get(name, 0.0))
        heights[name] = max(heights.get(name, 0.0), here)
    assert torch.equal(paid, expected)
    order = shuffled(table, seed)
    assert torch.equal(DenseThenSparse(success=0.0)(table.take(order), at()), paid[order])


def test_what_it_needs() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="progress"):
        DenseThenSparse()(climbing(progress=None), at())
    with pytest.raises(InvalidData, match="1 of 2 trajectories have no outcome"):
        DenseThenSparse()(climbing(outcome=[1.0] * 4 + [NAN] * 2), at())
