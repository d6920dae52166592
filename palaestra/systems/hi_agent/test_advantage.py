"""The foresight advantage of Hi-Agent.

1. Where each subgoal is a trajectory of one row and its node is a group, it is GRPO on F, bit for bit.
2. Without weights on execution and judge, equal forms give exactly 0.
3. A subgoal is compared with those of its own state only; credit needs no reward.
4. All rows of an attempt share its credit; attempts are compared over the peers, and each counts once.
5. Nodes of different states, subgoals without a node, tables without planner, and negative weights are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.hi_agent.advantage import foresight
from tests.parts.tables import quick, tables


def subgoals(executed: list[float], judged: list[float], **columns: Any) -> StepTable:
    """Subgoals of one state, without rows of other agents."""
    size = len(executed)
    base: dict[str, Any] = {
        "group": ["g"] * size,
        "trajectory": ["t"] * size,
        "agent": ["planner"] * size,
        "turn": range(size),
        "reward": [0.0] * size,
        "state_key": ["s"] * size,
        "node": ["n"] * size,
        "format": [1.0] * size,
        "executed": executed,
        "judged": judged,
    }
    return StepTable(**{**base, **columns})


@quick
@given(table=tables(one_row=True))
def test_1_it_is_grpo_over_subgoals(table: StepTable) -> None:
    table = table.replace(agent=["planner"] * len(table), node=table["group"], state_key=None, next_key=None)
    expected = grpo(table.replace(reward=table["executed"]))
    assert torch.equal(foresight(table, format_weight=0.0, execution_weight=1.0, judge_weight=0.0), expected)


def test_2_equal_forms() -> None:
    table = subgoals([1, 0, 1], [0.1, 0.5, 0.3])
    assert foresight(table, execution_weight=0.0, judge_weight=0.0).tolist() == [0, 0, 0]
    assert foresight(table.replace(format=[1.0, 1.0, 0.0]), execution_weight=0.0, judge_weight=0.0)[2] < 0


def test_3_states_stand_apart() -> None:
    table = subgoals([1, 1, 0, 0], [1, 0, 1, 0], node=["n", "n", "m", "m"], state_key=["s", "s", "r", "r"])
    found = foresight(table)
    assert found.tolist() == pytest.approx([0.7071, -0.7071, 0.7071, -0.7071], abs=1e-4)
    one = table.take(torch.tensor([0, 1, 2]))
    assert foresight(one).tolist() == pytest.approx([0.7071, -0.7071, 0], abs=1e-4)


def test_4_attempts() -> None:
    table = subgoals(
        [1, 0, 1, 0, 0, 0],
        [0] * 6,
        agent=["planner", "walker", "walker", "planner", "walker", "walker"],
        node=["n", None, None, "n", None, None],
        invocation=[1, 1, 1, 2, 2, 2],
    )
    found = foresight(table, scale="none")
    assert found.tolist() == pytest.approx([0.3, 0.5, 0.5, -0.3, -0.5, -0.5])
    longer = table.take(torch.tensor([0, 1, 1, 1, 2, 3, 4, 5]))  # a longer attempt also counts once
    assert foresight(longer.replace(turn=range(8)), scale="none")[1:5].tolist() == pytest.approx([0.5] * 4)


def test_5_refusals() -> None:
    table = subgoals([1, 0], [1, 0])
    with pytest.raises(InvalidData, match="set in different states, so they cannot be compared") as caught:
        foresight(table.replace(state_key=["s", "r"]))
    assert "trajectory t, turn 0" in caught.value.where and "`snapshot` and `restore`" in caught.value.remedy
    with pytest.raises(InvalidData, match="a subgoal has no node"):
        foresight(table.replace(node=["n", None]))
    with pytest.raises(InvalidData, match="no row is of agent `chief`; the agents are planner"):
        foresight(table, planner="chief")
    for name in ("node", "format", "executed", "judged"):
        with pytest.raises(MissingColumn, match=name):
            foresight(table.replace(**{name: None}))
    for weight in ("format_weight", "execution_weight", "judge_weight"):
        with pytest.raises(RecipeError, match=weight):
            foresight(table, **{weight: -0.1})
