"""HRPO, for every input; the published numbers are in golden.yaml. (1) λ = 0 is GRPO; (2) the action part is neither
centered nor scaled; (3) a table without scores and negative weights are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.hrpo.advantage import hrpo
from tests.parts.tables import close, quick, tables


def flow(**columns: Any) -> StepTable:
    """Two trajectories of planner and executor; the first has two planner turns."""
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["planner", "executor"] * 3,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0, 0, 1, 0, 0, 0],
        "outcome": [1.0] * 4 + [0.0] * 2,
    }
    return StepTable(**{**base, **columns})


@quick
@given(tables())
def test_without_action_weight_it_is_grpo(table: StepTable) -> None:  # rule 1
    assert torch.equal(hrpo(table, action_weight=0.0), grpo(table))


@quick
@given(tables(), st.sampled_from([0.25, 0.5, 2.0]))
def test_the_action_part_is_added_as_it_is(table: StepTable, share: float) -> None:  # rule 2
    difference = hrpo(table, action_weight=share) - grpo(table)
    assert close(difference, share * table["process"])
    whole = hrpo(table, action_weight=share, group_weight=0.0, action=("trajectory",))
    totals = torch.zeros(int(table["trajectory"].max()) + 1).index_add(0, table["trajectory"], table["process"])
    assert close(whole, share * totals[table["trajectory"]])


def test_what_hrpo_refuses() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="no row has a score of its action"):
        hrpo(flow())
    with pytest.raises(MissingColumn, match="no row has a score of its action"):
        hrpo(flow(process=[float("nan")] * 6))
    with pytest.raises(RecipeError, match="action_weight"):
        hrpo(flow(process=[0.0] * 6), action_weight=-1)
    missing = hrpo(flow(process=[float("nan")] * 5 + [-1.0]))
    assert close(missing - grpo(flow()), [0, 0, 0, 0, 0, -0.5])  # a row without a score counts as 0
