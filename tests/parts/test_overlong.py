"""Overlong: (1) the price by hand, over rows and in one row; (2) it stays between −factor and 0 and never rises with
length; (3) factor 0 changes nothing, bit for bit; (4) rows in any order, padding aside; (5) bad input is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.parts.rewards import overlong
from tests.parts.tables import quick, shuffled, tables

LENGTHS, PRICES = [70, 80, 85, 95, 100, 101], [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]


def table(lengths: list[int], **columns: Any) -> StepTable:
    """One trajectory a row."""
    n = len(lengths)
    base = {"group": ["g"] * n, "trajectory": range(n), "agent": ["x"] * n, "turn": [0] * n, "reward": [1.0] * n}
    return StepTable(**{**base, "token_count": lengths, **columns})


def test_by_hand() -> None:  # rule 1
    found = overlong(table(LENGTHS), maximum=100, buffer=20)
    assert found["overlong"].tolist() == pytest.approx(PRICES)
    assert found["reward"].tolist() == pytest.approx([1 + price for price in PRICES])
    half = overlong(table(LENGTHS), maximum=100, buffer=20, factor=0.5)
    assert half["overlong"].tolist() == pytest.approx([price / 2 for price in PRICES])
    split = table([60, 25, 85], trajectory=["a", "a", "b"], turn=[0, 1, 0])
    assert overlong(split, maximum=100, buffer=20)["overlong"].tolist() == pytest.approx([0.0, -0.25, -0.25])
    steepest = overlong(table([0 + 1, 50, 100]), maximum=100, buffer=100)
    assert steepest["overlong"].tolist() == pytest.approx([-0.01, -0.5, -1.0])


@given(st.integers(1, 300), st.integers(1, 100))
def test_bounds(length: int, buffer: int) -> None:  # rule 2
    price, longer = overlong(table([length, length + 1]), maximum=100, buffer=buffer, factor=2.0)["overlong"].tolist()
    assert -2 <= longer <= price <= 0


@quick
@given(tables())
def test_no_price(table: StepTable) -> None:  # rule 3
    assert torch.equal(overlong(table, factor=0.0)["reward"], table["reward"])
    assert torch.equal(overlong(table)["reward"], table["reward"]), "nothing is near 20480 tokens"


@quick
@given(tables())
def test_order_and_padding(table: StepTable) -> None:  # rule 4
    options = {"maximum": 4, "buffer": 3}
    found, order = overlong(table, **options), shuffled(table, 3)
    for name, values in overlong(table.take(order), **options).items():
        assert torch.equal(values, found[name][order])
    assert bool((found["overlong"][table.row_weight == 0] == 0).all())
    counts = table.row_weight > 0
    added = total_return(table.replace(**found)) - total_return(table)
    assert bool((added[counts] >= -1 - 1e-5).all())


def test_refusals() -> None:  # rule 5
    with pytest.raises(RecipeError, match="`buffer: 30` exceeds `maximum: 20`"):
        overlong(table([1]), maximum=20, buffer=30)
    for wrong in ({"buffer": 0}, {"buffer": -3}, {"maximum": 0}, {"factor": -1.0}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            overlong(table([1]), **wrong)
