"""Rewards: (1) the outcome stands on the last row in time, whatever the order of rows; (2) padding gets nothing; (3) a
trajectory without outcome is named; (4) a penalty needs no column when every action was readable; (5) `cut_outcome`
fills outcomes of cut trajectories and touches nothing else; (6) for rewards that read outcomes, a trajectory that a
limit has cut off before the environment judged it has failed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.rewards import cut_outcome, environment, invalid_penalty, outcome
from palaestra.systems.multi_turn_guide import dense_normalized
from palaestra.systems.ppr.renorm import renorm
from tests.messages import told
from tests.parts.tables import quick, tables

TEAM = {
    "group": ["g"] * 4,
    "trajectory": ["a", "a", "a", "b"],
    "agent": ["x", "y", "x", "x"],
    "turn": [2, 1, 0, 0],
    "reward": [5.0, 5.0, 5.0, 5.0],
    "outcome": [1.0, 1.0, 1.0, 0.5],
}


def test_last_in_time() -> None:  # rule 1
    assert outcome(StepTable(**TEAM)).tolist() == [1.0, 0.0, 0.0, 0.5]
    assert outcome(StepTable(**TEAM), by=("trajectory", "agent")).tolist() == [1.0, 1.0, 0.0, 0.5]


@quick
@given(tables())
def test_return_is_the_outcome(table: StepTable) -> None:  # rule 1
    assert torch.equal(total_return(table.replace(reward=outcome(table))), table["outcome"])
    assert torch.equal(environment(table), table["reward"])


def test_padding_gets_nothing() -> None:  # rule 2
    table = StepTable(**TEAM, row_weight=[0.0, 1.0, 1.0, 1.0])
    assert outcome(table).tolist() == [0.0, 1.0, 0.0, 0.5]


def test_missing_outcome_is_named() -> None:  # rule 3
    with told(InvalidData, "trajectory b"):
        outcome(StepTable(**{**TEAM, "outcome": [1.0, 1.0, 1.0, float("nan")]}))
    with pytest.raises(MissingColumn, match="outcome"):
        outcome(StepTable(**{**TEAM, "outcome": None}))


def test_penalty() -> None:  # rule 4
    table = StepTable(**TEAM, invalid=[True, False, False, True])
    assert invalid_penalty(table, coefficient=0.5).tolist() == [4.5, 5.0, 5.0, 4.5]
    assert invalid_penalty(StepTable(**TEAM)).tolist() == [5.0] * 4
    with pytest.raises(RecipeError, match="coefficient"):
        invalid_penalty(table, coefficient=-1.0)


def test_unfinished_trajectories_have_no_outcome_yet() -> None:  # rule 3
    flags = {"terminated": [True, True, True, False], "truncated": [False] * 4}
    table = StepTable(**{**TEAM, "outcome": [1.0, 1.0, 1.0, float("nan")]}, **flags)
    assert outcome(table).tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(InvalidData, match="it has no outcome"):
        outcome(table.replace(terminated=[True] * 4))


def game(rewards, outcome, **columns):
    size = len(rewards)
    return StepTable(group=["g"] * size, trajectory=[0] * size, agent=["x"] * size, turn=range(size), reward=rewards,
                     outcome=[outcome] * size, **columns)  # fmt: skip


def test_cut_outcomes():  # rule 5
    table = game([0.0] * 6, 1.0).replace(
        trajectory=[0, 0, 1, 1, 2, 2],
        outcome=[np.nan, np.nan, 1.0, 1.0, np.nan, np.nan],
        truncated=[0, 1, 0, 1, 0, 0],
    )
    found = cut_outcome(table)
    assert set(found) == {"outcome"}
    assert found["outcome"][:4].tolist() == [0, 0, 1, 1]
    assert bool(found["outcome"][4:].isnan().all()), "an end that the environment did not judge is not filled"
    assert cut_outcome(table, value=-1.0)["outcome"][:2].tolist() == [-1, -1]
    whole = table.replace(outcome=torch.ones(6))
    assert torch.equal(cut_outcome(whole)["outcome"], whole["outcome"])


def test_cut_trajectories_have_failed() -> None:  # rule 6
    table = game([1.0, 0.0], np.nan, terminated=[False, False], truncated=[False, True], process=[0.5, np.nan])
    assert outcome(table).tolist() == [0, 0]
    assert renorm(table).tolist() == renorm(table.replace(outcome=torch.zeros(2))).tolist()
    assert dense_normalized(table, maximum=2).tolist() == [0.5, 0]
    judged = table.replace(terminated=[False, True], truncated=[False, False])
    for reward in (outcome, renorm):
        with pytest.raises(InvalidData):
            reward(judged)
