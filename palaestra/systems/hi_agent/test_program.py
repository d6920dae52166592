"""The program `foresight`:

1. n decisions take n · subgoals attempts; with one subgoal it is the program `play`.
2. All subgoals of a node see the same state; the environment is restored exactly.
3. The episode continues with the first attempt, the best judged, or a random one; outcome and returns are of that one.
4. Steps carry their node and attempt; the others' steps carry the planner's turn.
5. The episode runner and the vector runner play the same.
6. Estimator, program and two policies train together; another program in the same recipe is refused without nodes.
7. Environments that cannot restore a state, missing planners and policies that remember are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.data import Play, RunSetup, StepTable, Trajectory
from palaestra.data.abilities import without
from palaestra.errors import RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.hi_agent.advantage import foresight as credit
from palaestra.systems.hi_agent.errands import PLANNER, Errands
from palaestra.systems.hi_agent.program import foresight
from palaestra.training.start import train


class Unable(Errands):  # type: ignore[misc]
    """An environment that cannot restore a state."""

    abilities = without(Errands.abilities, "snapshot")


def played(
    runner: Any = EpisodeRunner, program: Any = foresight, make: Any = Errands, body: str = "mlp", **options: Any
) -> list[Trajectory]:
    """Four episodes of random networks."""
    env = make()
    setup = RunSetup(seed=0, vector_size=env.vector_size, action_count=env.action_count)
    roles = {name: Role(policy=NetworkPolicy(name, setup, hidden=(8,), body=body)) for name in env.agents}

    async def chosen(episode: Any) -> None:
        await program(episode, **options)

    setup = RunSetup(
        environment_name="errands", make_environment=make, roles=roles, program=chosen, environment_options={}
    )
    plays = [Play(task=task, group=f"g{i}", sample=0, seed=i) for i, task in enumerate(env.tasks("train", 4, 0))]
    made = runner(setup, RolloutSettings(max_turns=1000))
    try:
        return made.collect(plays)
    finally:
        made.close()


def plans(trajectory: Trajectory) -> list[Any]:
    return [step for step in trajectory.steps if step.agent == PLANNER]


@pytest.mark.parametrize("subgoals", [1, 2, 5])
def test_attempts_are_linear(subgoals: int) -> None:  # rule 1
    for trajectory in played(subgoals=subgoals):
        assert trajectory.error is None
        decisions = {step.marks.node for step in plans(trajectory)}
        assert len(plans(trajectory)) == len(decisions) * subgoals and 4 <= len(decisions) <= 5


def test_one_subgoal_is_plain_play() -> None:  # rule 1
    for one, plain in zip(played(subgoals=1), played(program=play), strict=True):
        assert [s.action.value for s in one.steps] == [s.action.value for s in plain.steps]
        assert (one.outcome, one.returns) == (plain.outcome, plain.returns)


def test_subgoals_see_one_state() -> None:  # rule 2
    for trajectory in played():
        nodes: dict[str, set[str]] = {}
        for step in plans(trajectory):
            nodes.setdefault(step.marks.node, set()).add(step.observation.state_key)
        assert all(len(keys) == 1 for keys in nodes.values())
        assert len({key for keys in nodes.values() for key in keys}) == len(nodes)


@pytest.mark.parametrize("follow", ["first", "best", "random"])
def test_one_is_followed(follow: str) -> None:  # rule 3
    for trajectory in played(follow=follow):
        env = Errands()
        result = env.reset(trajectory.task)
        nodes: dict[str, list[int]] = {}
        for place, step in enumerate(trajectory.steps):
            if step.agent == PLANNER:
                nodes.setdefault(step.marks.node, []).append(place)
        ends = [*[place for places in nodes.values() for place in places][1:], len(trajectory.steps)]
        until = dict(zip((place for places in nodes.values() for place in places), ends, strict=True))
        for number, places in enumerate(nodes.values()):  # replay the attempt that the next node continues
            following = list(nodes.values())[number + 1 : number + 2]
            state, found = env.snapshot(), None
            for place in places:
                env.restore(state)
                for step in trajectory.steps[place : until[place]]:
                    result = env.step({step.agent: step.action})
                judged = trajectory.steps[place].info["judged"]
                best = judged == max(trajectory.steps[p].info["judged"] for p in places)
                wanted = {"first": place == places[0], "best": best, "random": True}[follow]
                key = result.observations[PLANNER].state_key if result.observations else None
                if wanted and (not following or key == trajectory.steps[following[0][0]].observation.state_key):
                    found = (env.snapshot(), result)
                    if not following and bool(result.info["success"]) == (trajectory.outcome == 1):
                        break
            assert found is not None
            env.restore(found[0])
            result = found[1]
        assert trajectory.outcome == float(result.info["success"]) and trajectory.info["done"] == result.info["done"]
        assert trajectory.returns.get(PLANNER, 0.0) == trajectory.outcome


def test_steps_tell_their_attempt() -> None:  # rule 4
    (trajectory, *_) = played(subgoals=3)
    attempts = [step.invocation for step in plans(trajectory)]
    assert attempts == list(range(1, len(attempts) + 1))
    for step in trajectory.steps:
        if step.agent != PLANNER:
            caller = trajectory.steps[step.parent or 0]
            assert caller.agent == PLANNER and caller.invocation == step.invocation and step.marks.node is None


def test_runners_agree() -> None:  # rule 5
    for one, other in zip(played(EpisodeRunner), played(VectorRunner), strict=True):
        assert [s.action.value for s in one.steps] == [s.action.value for s in other.steps]
        assert one.outcome == other.outcome


def test_credit_reads_it() -> None:  # rule 6
    table = StepTable.from_trajectories(played(VectorRunner))
    found = credit(table)
    planned = table["agent"] == table.labels("agent").index(PLANNER)
    assert bool(found[planned].any()) and bool(torch.isfinite(found).all())


def test_training(tmp_path: Path) -> None:  # rule 6
    tiny = [
        "training.iterations=1",
        "rollout.tasks=2",
        "rollout.group=1",
        "evaluation.tasks=4",
        f"run={tmp_path / 'a'}",
    ]
    loaded = load(["hi_agent/errands.yaml", "hi_agent/method.yaml"], [*tiny, "warm_start.epochs=1"])
    train(loaded.settings, recipe=loaded.to_json(), quiet=True)
    assert (tmp_path / "a" / "metrics.jsonl").exists()
    with pytest.raises(RecipeError, match="reads the column `node`"):
        load(["hi_agent/errands.yaml", "hi_agent/method.yaml"], ["program=play"])


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_environments_must_go_back(runner: Any) -> None:  # rule 7
    for trajectory in played(runner, make=Unable):
        assert trajectory.error is not None and "cannot be put back into an earlier state" in trajectory.error.message


def test_refusals() -> None:  # rule 7
    (trajectory, *_) = played(planner="chief")
    assert trajectory.error is not None and "has no agent `chief`" in trajectory.error.message
    (trajectory, *_) = played(body="gru")
    assert trajectory.error is not None and "remembers earlier attempts" in trajectory.error.message
