"""Rules of the vector runner, each pinned by the test of the same number.

1.  Its trajectories are those of the episode runner, field by field, limits included.
2.  They do not depend on the number of slots or on the order of plays, and come in that order.
3.  An environment that raises fails its episode only, boundary `environment`; so does one that cannot be made.
4.  A slot whose episode is over takes the next play at once; all slots ask in one forward pass.
5.  Where the environment offers a Gymnasium vector environment, the same episodes are played on it.
6.  A vector environment that raises fails the episodes in it, and the next ones are played.
7.  A vector environment that resets itself is refused.
8.  Several agents, network policies and scripted ones may play together.
9.  Another program may be played (demonstrations); one that waits for anything else fails, boundary `part`.
10. Policies with an engine, and async environments, are refused with the way out.
11. Roles that have left the run are forgotten, with their weights.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.data import Action, Observation, Play, RunSetup, StepResult, StopReason, Task, Trajectory
from palaestra.data.protocols import Policy
from palaestra.envs.adapters.gymnasium.world import GymnasiumEnvironment
from palaestra.errors import ContractError, RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.policies.scripted import random
from palaestra.rollout.programs import demonstrate, play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner

CARTPOLE = functools.partial(GymnasiumEnvironment, id="CartPole-v1")


class Countdown:
    """An episode lasts `params["length"]` turns; agents see how many are left; faults on demand."""

    def __init__(self, *, agents: tuple[str, ...] = ("player",), broken: bool = False) -> None:
        if broken:
            raise OSError("no display")
        self.agents = agents

    def reset(self, task: Task) -> StepResult:
        self.task, self.left = task, int(task.params["length"])
        return self.result()

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        assert set(actions) == set(self.agents)
        self.left -= 1
        if self.left == self.task.params.get("fails_at"):
            raise ValueError("the wheel came off")
        rewards = {name: float(action.value) for name, action in actions.items()}
        return self.result(rewards=rewards, terminated=frozenset(self.agents) if self.left == 0 else frozenset())

    def result(self, **more: Any) -> StepResult:
        seen = Observation(vector=np.array([self.left, 1.0], np.float32), legal=[0, 1])
        return StepResult(observations=dict.fromkeys(self.agents, seen) if self.left else {}, **more)

    def expert(self, agent: str) -> Action:
        return Action(value=self.left % 2)

    def close(self) -> None:
        pass


def network(size: int, name: str = "main", **options: Any) -> NetworkPolicy:
    return NetworkPolicy(name, RunSetup(seed=3, vector_size=size, action_count=2), **options)


def make_setup(make: Callable[[], Any], program: Any = play, **roles: Any) -> RunSetup:
    return RunSetup(
        environment_name="test",
        make_environment=make,
        roles={("*" if name == "all" else name): Role(policy=policy) for name, policy in roles.items()},
        program=program,
        environment_options={},
    )


def plays(tasks: Sequence[Task]) -> list[Play]:
    return [Play(task=task, group=f"{i:03d}", sample=i % 2, seed=100 + i) for i, task in enumerate(tasks)]


def countdowns(*lengths: int, **params: int) -> list[Play]:
    return plays([Task(env="test", seed=0, params={"length": length, **params}) for length in lengths])


def collect(on: RunSetup, wanted: list[Play], runner: type = VectorRunner, **settings: Any) -> list[Trajectory]:
    made = runner(on, RolloutSettings(**{"max_turns": 600, **settings}))
    try:
        return made.collect(wanted)
    finally:
        made.close()


def plain(thing: Any, *, without: tuple[str, ...] = ()) -> Any:
    """Nested fields as comparable values, but for what a clock said."""
    if isinstance(thing, np.ndarray):
        return thing.dtype.str, thing.tolist()
    if isinstance(thing, Mapping):
        return {key: plain(value, without=without) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(item, without=without) for item in thing]
    names = getattr(type(thing), "__slots__", None)
    if names is None or isinstance(thing, str):
        return thing
    return {name: plain(getattr(thing, name), without=without) for name in names if name not in (*without, "seconds")}


@pytest.mark.parametrize("limits", [{}, {"max_turns": 7}, {"max_tokens": 9}])
@pytest.mark.parametrize("body", ["mlp", "gru"])
def test_1_same_as_the_episode_runner(body: str, limits: dict[str, int]) -> None:
    on = make_setup(CARTPOLE, all=network(4, body=body))
    wanted = plays(CARTPOLE().tasks("train", 7, seed=0))
    vector, episodes = (collect(on, wanted, kind, in_flight=3, **limits) for kind in (VectorRunner, EpisodeRunner))
    assert plain(vector) == plain(episodes)
    assert not any(trajectory.error for trajectory in vector)
    if limits:
        assert {t.stop for t in vector} == {StopReason(next(iter(limits)))}
        assert all(t.steps[-1].truncated and t.last["player"].vector is not None for t in vector)


def test_2_lanes_and_order_do_not_matter() -> None:
    on = make_setup(CARTPOLE, all=network(4))
    wanted = plays(CARTPOLE().tasks("train", 6, seed=0))
    many, one, backwards = (
        collect(on, order, in_flight=slots) for order, slots in ((wanted, 6), (wanted, 1), (wanted[::-1], 4))
    )
    assert plain(many) == plain(one) == plain(backwards[::-1])
    assert [t.id for t in many] == [f"{p.group}/{p.sample}" for p in wanted]


def test_3_failures_are_of_one_episode() -> None:
    wanted = [*countdowns(4), *countdowns(4, fails_at=2), *countdowns(4)]
    for runner in (VectorRunner, EpisodeRunner):
        fine, failed, after = collect(make_setup(Countdown, all=network(2)), wanted, runner, in_flight=2)
        assert [len(t.steps) for t in (fine, failed, after)] == [4, 2, 4]
        assert failed.stop is StopReason.ERROR and failed.error is not None
        assert (failed.error.boundary, failed.error.kind) == ("environment", "ValueError")
        assert "the wheel came off" in failed.error.message
        assert fine.error is after.error is None
    (unmade,) = collect(make_setup(functools.partial(Countdown, broken=True), all=network(2)), countdowns(2))
    assert unmade.error is not None and unmade.error.boundary == "environment"
    assert "no display" in unmade.error.message


def test_4_lanes_are_never_idle() -> None:
    policy, sizes = network(2), []
    answer = policy.answer
    policy.answer = lambda questions: sizes.append(len(questions)) or answer(questions)  # type: ignore[method-assign]
    collect(make_setup(Countdown, all=policy), countdowns(1, 6, 2, 1, 2), in_flight=2)
    assert sizes == [2] * 6  # one slot plays 6 turns, the other 1 + 2 + 1 + 2


class VectorCartPole(GymnasiumEnvironment):
    """CartPole which also offers copies that are stepped together."""

    abilities = (*GymnasiumEnvironment.abilities, "vector_environment")
    mode = AutoresetMode.DISABLED
    fuse = 10**9

    def __init__(self, *, id: str = "CartPole-v1") -> None:
        super().__init__(id=id)
        self.id = id

    def vector_environment(self, count: int) -> SyncVectorEnv:
        made = SyncVectorEnv([lambda: gymnasium.make(self.id)] * count, autoreset_mode=self.mode)
        step, blown = made.step, []

        def fused(actions: Any) -> Any:
            type(self).fuse -= 1
            blown.extend([True] * (type(self).fuse == 0))
            if blown:  # and it stays so
                raise RuntimeError("a fuse blew")
            return step(actions)

        made.step = fused  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("body", ["mlp", "gru"])
def test_5_gymnasium_vector_environments(body: str) -> None:
    wanted = plays(CARTPOLE().tasks("train", 8, seed=0))
    policy = network(4, body=body)
    runner = VectorRunner(make_setup(VectorCartPole, all=policy), RolloutSettings(max_turns=30, in_flight=3))
    expected = collect(make_setup(CARTPOLE, all=policy), wanted, max_turns=30)
    for count in (8, 2, 8):  # fewer slots in between; all copies begin anew
        found = runner.collect(wanted[:count])
        no_text = ("text", "legal")
        assert plain(found, without=no_text) == plain(expected[:count], without=no_text)
    runner.close()


def test_5_vectors_as_actions() -> None:
    single, many = (functools.partial(kind, id="Pendulum-v1") for kind in (GymnasiumEnvironment, VectorCartPole))
    wanted = plays(single().tasks("train", 4, seed=0))
    policy = random("main", RunSetup(source=single()))
    expected = collect(make_setup(single, all=policy), wanted, EpisodeRunner, max_turns=20)
    assert plain(collect(make_setup(single, all=policy), wanted, max_turns=20)) == plain(expected)
    found = collect(make_setup(many, all=policy), wanted, max_turns=20)
    assert plain(found, without=("text",)) == plain(expected, without=("text",))


def test_6_a_broken_vector_environment() -> None:
    wanted = plays(CARTPOLE().tasks("train", 5, seed=0))
    VectorCartPole.fuse = 4
    found = collect(make_setup(VectorCartPole, all=network(4)), wanted, in_flight=2)
    VectorCartPole.fuse = 10**9
    assert [t.error is not None for t in found] == [True, True, False, False, False]
    assert "a fuse blew" in found[0].error.message and len(found[0].steps) == 4  # type: ignore[union-attr]
    fine = collect(make_setup(CARTPOLE, all=network(4)), wanted)[2:]
    assert [t.returns for t in found[2:]] == [t.returns for t in fine]


def test_7_copies_that_reset_themselves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorCartPole, "mode", AutoresetMode.SAME_STEP)
    with pytest.raises(ContractError, match=r"autoreset_mode=AutoresetMode\.DISABLED"):
        collect(make_setup(VectorCartPole, all=network(4)), plays(CARTPOLE().tasks("train", 1, seed=0)))


def test_8_several_agents_and_policies() -> None:
    make = functools.partial(Countdown, agents=("anna", "ben", "carl"))
    anna, rest = network(2, "first"), network(2, "second", body="gru")
    on = make_setup(make, anna=anna, all=rest)
    wanted = countdowns(3, 1, 4, 2)
    found = collect(on, wanted, in_flight=3)
    assert plain(found) == plain(collect(on, wanted, EpisodeRunner))
    assert [step.policy for step in found[0].steps[:3]] == ["first", "second", "second"]


def test_9_programs() -> None:
    on = make_setup(Countdown, all=network(2))
    runner = VectorRunner(on, RolloutSettings())
    wanted = countdowns(3, 2)
    shown = runner.collect(wanted, program=functools.partial(demonstrate, noise=0.5))
    expected = EpisodeRunner(on, RolloutSettings()).collect(wanted, program=functools.partial(demonstrate, noise=0.5))
    assert plain(shown) == plain(expected)
    assert all(step.action.tokens.tolist() == [step.action.value] for t in shown for step in t.steps)

    async def sleepy(episode: Any) -> None:
        await episode.reset()
        await asyncio.sleep(0)

    async def clumsy(episode: Any) -> None:
        raise KeyError("typo")

    for program, said in ((sleepy, "it may wait only for acts and steps"), (clumsy, "KeyError: 'typo'")):
        failed = runner.collect(wanted, program=program)
        assert all(t.stop is StopReason.ERROR and t.error.boundary == "part" for t in failed)  # type: ignore[union-attr]
        assert said in failed[1].error.message  # type: ignore[union-attr]


def test_10_refusals() -> None:
    class Writer(Policy):
        name, model = "writer", "a causal language model"

    with pytest.raises(RecipeError, match="runner: episodes"):
        VectorRunner(make_setup(Countdown, all=Writer()), RolloutSettings())

    class Slow(Countdown):
        async def step(self, actions: Mapping[str, Action]) -> StepResult:  # type: ignore[override]
            return super().step(actions)

    with pytest.raises(ContractError, match="runner: episodes"):
        collect(make_setup(Slow, all=network(2)), countdowns(2))


def test_11_roles_that_left_are_forgotten() -> None:
    on = make_setup(Countdown, all=network(2), opponent=network(2, "main@0"))
    runner = VectorRunner(on, RolloutSettings())
    runner.collect([dataclasses.replace(play, roles={"player": "opponent"}) for play in countdowns(2)])
    left = weakref.ref(on.roles.pop("opponent").policy)  # type: ignore[attr-defined]
    runner.collect(countdowns(2))
    gc.collect()
    assert left() is None
