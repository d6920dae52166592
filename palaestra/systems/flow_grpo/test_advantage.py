"""Rules of Flow-GRPO for every input; the published numbers are in golden.yaml.

1. Every planner turn of a trajectory has the same advantage.
2. With one turn each it is GRPO.
3. Rows of other modules get 0 and never enter the loss.
4. Refusals.
5. In a run of `flow` only the planner learns.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import Play, RunSetup, StepTable
from palaestra.envs.probes.flow import PLANNER, Flow
from palaestra.errors import InvalidData
from palaestra.parts.estimators import grpo
from palaestra.policies.network import NetworkPolicy
from palaestra.policies.scripted import expert
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.training.stages import assign_credit
from tests.parts.tables import quick, tables


@quick
@given(tables())
def test_every_turn_has_the_same(table: StepTable) -> None:  # rule 1
    found, names = flow_grpo(table), table["trajectory"]
    for code in names.unique():
        assert len(found[names == code].unique()) == 1


@quick
@given(tables(one_row=True))
def test_one_turn_each_is_grpo(table: StepTable) -> None:  # rule 2
    assert torch.equal(flow_grpo(table), grpo(table))
    assert torch.equal(flow_grpo(table, unit="row"), grpo(table))


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


def test_other_modules_never_enter_the_loss() -> None:  # rule 3
    table = flow()
    others = table["agent"] == table.labels("agent").index("executor")
    credit = assign_credit([lambda t: flow_grpo(t, planner="planner", unit="row")], table)
    assert bool((credit["advantage"][others] == 0).all()) and bool((credit["advantage"][~others] != 0).all())
    wild = table.replace(agent=["planner", "verifier"] * 3)  # the names of other modules change nothing
    assert torch.equal(flow_grpo(wild, planner="planner", unit="row"), credit["advantage"])


def test_what_flow_grpo_refuses() -> None:  # rule 4
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*1 of 2 have no turn of `planner`"):
        flow_grpo(flow(agent=["planner", "executor"] * 2 + ["executor"] * 2), planner="planner")
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*the judge failed"):
        flow_grpo(flow(outcome=[1.0] * 4 + [float("nan")] * 2))
    assert bool((flow_grpo(flow(outcome=[float("nan")] * 6)) != 0).all())  # no trajectory has an outcome
    with pytest.raises(InvalidData, match="belong to different tasks"):
        flow(task=["x"] * 4 + ["y"] * 2)


def test_only_the_planner_learns() -> None:  # rule 5
    env = Flow()
    setup = RunSetup(seed=0, vector_size=env.vector_size, action_count=env.action_count)
    roles = {PLANNER: Role(policy=NetworkPolicy(PLANNER, setup)), "*": Role(policy=expert("rules", setup))}
    setup = RunSetup(environment_name="flow", make_environment=Flow, roles=roles, program=play, environment_options={})
    tasks = env.tasks("train", 8, 0)
    plays = [Play(task=tasks[k // 4], group=f"g{k // 4}", sample=k % 4, seed=k) for k in range(32)]
    table = StepTable.from_trajectories(VectorRunner(setup, RolloutSettings(max_turns=32)).collect(plays))
    planned = table["agent"] == table.labels("agent").index(PLANNER)
    for unit in ("trajectory", "row"):
        found = flow_grpo(table, planner=PLANNER, unit=unit)
        assert bool((found[~planned] == 0).all()) and bool((found[planned] != 0).any())
    assert set(table.labels("policy")) == {PLANNER, "rules"}
