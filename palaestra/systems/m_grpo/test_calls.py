"""Calls in runs: (1) episodes of `relay` carry invocation and parent into the table, in both runners, and M-GRPO works
on that table.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.data import Iteration, Play, RunSetup, StepTable
from palaestra.envs.probes.relay import MAIN, SUB, Relay
from palaestra.policies.network import NetworkPolicy
from palaestra.policies.scripted import expert
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.m_grpo.advantage import m_grpo as m_grpo_part
from palaestra.systems.m_grpo.hierarchical import hierarchical


def m_grpo(table: StepTable, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """The part in an iteration of this seed."""
    return m_grpo_part(table, Iteration(seed=seed), **options)


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_calls_reach_the_table(runner: Any) -> None:  # rule 1
    env = Relay()
    setup = RunSetup(seed=0, vector_size=env.vector_size, action_count=env.action_count)
    roles = {MAIN: Role(policy=NetworkPolicy(MAIN, setup)), SUB: Role(policy=expert("rules", setup))}
    setup = RunSetup(
        environment_name="relay", make_environment=Relay, roles=roles, program=play, environment_options={}
    )
    plays = [Play(task=env.tasks("train", 2, 0)[k // 4], group=f"g{k // 4}", sample=k % 4, seed=k) for k in range(8)]
    played = runner(setup, RolloutSettings(max_turns=16)).collect(plays)
    for trajectory in played:
        calls = 0
        for step in trajectory.steps:
            calls += step.agent == MAIN and step.action.value < 8
            if step.agent == MAIN:
                assert (step.invocation, step.parent) == (0, None)
            else:
                assert step.invocation == calls
                assert trajectory.steps[step.parent or 0].agent == MAIN
        assert trajectory.info["calls"] == calls
    table = StepTable.from_trajectories(played)
    found = m_grpo(table.replace(reward=hierarchical(table, main=MAIN)), main=MAIN)
    assert found.shape == (len(table),) and bool(found.isfinite().all())
