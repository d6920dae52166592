"""SALT:

1. It moves credit inside a group and creates none, among steps with the same state, action and next state, after the
   same history.
2. Where no step is shared nothing changes.
3. Missing keys and an advantage that differs inside a trajectory are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import reward_to_go
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.parts.estimators import dr_grpo, grpo, rloo
from palaestra.systems.salt import salt
from tests.parts.small_tables import table
from tests.parts.tables import quick, tables


@quick
@given(tables(), st.sampled_from([grpo, rloo, dr_grpo]), st.integers(0, 2))
def test_salt_moves_credit_only(some: StepTable, base: Any, history: int) -> None:  # rule 1
    before = base(some)
    after = salt(some, before, history=history)
    assert abs(float((after.double() - before.double()).sum())) < 1e-4
    assert float(after.abs().max()) <= float(before.abs().max()) + 1e-6


@quick
@given(tables())
def test_salt_without_shared_steps(some: StepTable) -> None:  # rule 2
    unique = some.replace(state_key=range(len(some)))
    assert torch.equal(salt(unique, grpo(some)), grpo(some))


def test_salt_of_equal_trajectories() -> None:  # rule 1
    twins = table(next_key=["t", "end", "t", "end"], state_key=["s", "t", "s", "t"])
    assert salt(twins, grpo(twins)).tolist() == [0.0] * 4


def test_salt_merges_inside_groups_only() -> None:  # rule 1
    apart = table(group=["g", "g", "h", "h"], next_key=["t", "end", "t", "end"], state_key=["s", "t", "s", "t"])
    assert salt(apart, torch.tensor([1.0, 1.0, -1.0, -1.0])).tolist() == [1.0, 1.0, -1.0, -1.0]


def test_salt_with_history() -> None:  # rule 1
    merging = table(state_key=["s", "t", "r", "t"], next_key=["t", "end", "t", "end"])
    ones = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert salt(merging, ones).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert salt(merging, ones, history=1).tolist() == [1.0, 1.0, -1.0, -1.0], "the steps before t differ"


def test_salt_knows_one_end() -> None:  # rule 1
    ends = {"state_key": ["s", "t", "r", "t"], "next_key": ["t", None, "t", None]}
    ones = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert salt(table(**ends, terminated=[False, True, False, True]), ones).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert salt(table(**ends, terminated=[False, True, False, False]), ones).tolist() == [1.0, 1.0, -1.0, -1.0]


@pytest.mark.parametrize("key", ["state_key", "action_key", "next_key"])
def test_salt_without_keys(key: str) -> None:  # rule 3
    with pytest.raises(MissingColumn, match=f"the table has no column `{key}`"):
        salt(table(**{key: None}), torch.ones(4))
    with pytest.raises(MissingColumn, match="no row has a value in it"):
        salt(table(**{key: [None] * 4}), torch.ones(4))


def test_salt_bad_base() -> None:  # rule 3
    to_go = reward_to_go(table(), gamma=0.5)
    with pytest.raises(InvalidData, match="differs inside a trajectory") as caught:
        salt(table(), to_go)
    assert "Put grpo, rloo or dr_grpo before it" in str(caught.value)
    with pytest.raises(InvalidData, match="differs inside a trajectory"):
        salt(table(token_count=[2, 1, 1, 1]), torch.tensor([1.0, 2.0, 1.0, 0.0, 0.0]), base="row")
