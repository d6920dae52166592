"""Turn-level GAE: (1) the next turn is found by its number, in any order of rows; (2) turns that are missing or occur
twice are refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.systems.turn_gae.advantage import turn_gae
from tests.parts.small_tables import two_steps
from tests.parts.tables import close, quick, shuffled, tables


def test_rows_in_any_order() -> None:  # rule 1
    table = StepTable(
        group=["g"] * 3, trajectory=["t"] * 3, agent=["x"] * 3, turn=[2, 0, 1], reward=[4.0, 0.0, -0.5],
        row_value=[2.0, 1.0, 1.2], terminated=[True, False, False],
    )  # fmt: skip
    assert close(turn_gae(table, whiten=False).advantage, [2.0, 2.3836, 2.2402])
    assert close(turn_gae(table, whiten=False).target, [4.0, 3.3836, 3.4402])


def test_turns_that_are_missing_or_twice() -> None:  # rule 2
    with pytest.raises(InvalidData, match=r"trajectory t(.|\n)*the table has 2 of its 3 turns"):
        turn_gae(two_steps(turn=[0, 2]))
    with pytest.raises(InvalidData, match="1 rows repeat a turn of"):
        turn_gae(two_steps(turn=[1, 1]))
    assert turn_gae(two_steps(turn=[3, 4])).advantage.isfinite().all()  # other agents acted before
    with pytest.raises(InvalidData, match="0 units cannot be whitened"):
        turn_gae(two_steps(row_weight=[0.0, 0.0]))


@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_shuffled_rows(table: StepTable, seed: int) -> None:  # rule 1
    order = shuffled(table, seed)
    assert torch.equal(
        turn_gae(table, whiten=False).advantage[order], turn_gae(table.take(order), whiten=False).advantage
    )
