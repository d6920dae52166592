"""Several roles in one episode, each rule pinned by a test of the same number.

1.  Acts that were begun together are steps in the order in which they were asked, whoever answers first.
2.  An agent that is asked twice at once draws twice, by different seeds.
3.  A call has a conversation of its own: its number, its caller, its own segments, and its last step is an end.
4.  A role that is no agent of the environment acts for its only agent; rewards and what is told go to that role.
5.  A role that acts for no agent, and two that act for one, fail the episode, which says so.
6.  An episode in which nobody acts fails.
7.  Two roles that wait for each other fail as a deadlock; other episodes go on. Slow acts are none.
8.  An act that fails ends the others that were begun with it.
9.  A role's prompt stands around what it is shown; a parser reads what it says, and what means nothing is invalid.
10. A role's own temperature counts in training and not in evaluations; its length always does.
11. A play lets another role take an agent's part; an opponent's rows weigh nothing.
12. A role that an exception names is in the message; other episodes go on.
13. Who is cut off takes along what it could not answer any more, as it would have seen it, or else nothing.
14. Rewards from before a role's first act are paid on that act.
15. Nobody acts after the end, whatever a program has left behind.
16. A role with a prompt must be shown a text.
17. A role that the program does not have by its own words, or that nobody plays, fails by name.
18. What is no observation cannot be shown, and what is no action cannot be done: the program is told, by its role.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Observation, Play, RunSetup, StepTable, StopReason, Trajectory
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.rollout.episode import Episode
from palaestra.rollout.programs import acted_by
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import EchoEnvironment, ScriptedPolicy


@dataclass
class Slow(Policy):
    """A policy whose answers take their time; it notes seeds and samplings."""

    name: str = "slow"
    seconds: Mapping[str, float] = field(default_factory=dict)
    trainable: bool = False
    version: int = 0
    seeds: list[int] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    ended: list[Hashable] = field(default_factory=list)
    canceled: list[str] = field(default_factory=list)

    def session(self, *, context: Any, sampling: Sampling, key: Any) -> _Slow:
        self.samplings.append(sampling)
        return _Slow(self, key)


@dataclass
class _Slow(Session):
    policy: Slow
    key: Any

    async def act(self, observation: Observation, *, seed: int) -> Response:
        self.policy.seeds.append(seed)
        text = observation.text or ""
        if text == "fail":
            raise ValueError("no idea")
        try:
            await asyncio.sleep(self.policy.seconds.get(text, 0.0))
        except asyncio.CancelledError:
            self.policy.canceled.append(text)
            raise
        return Response(action=Action(text=text, value=text))

    def record(self, observation: Observation, action: Action) -> Response:
        return Response(action=action)

    def end(self, observation: Observation | None) -> None:
        self.policy.ended.append(self.key)


def run(
    program: Any, *, count: int = 1, turns: int = 1, roles: Any = None, plays: Any = None, **settings: Any
) -> list[Trajectory]:
    setup = RunSetup(
        environment_name="echo",
        make_environment=functools.partial(EchoEnvironment, turns=turns),
        roles=roles or {"*": Role(policy=Slow())},
        program=program,
        environment_options={},
    )
    tasks = EchoEnvironment().tasks("train", count, seed=1)
    given = [Play(task=task, group=f"{i:03d}", sample=0, seed=i) for i, task in enumerate(tasks)]
    return EpisodeRunner(setup, RolloutSettings(**settings)).collect([replace(play, **(plays or {})) for play in given])


async def together(episode: Episode, *shown: str) -> list[Action]:
    return list(await asyncio.gather(*(episode.agents[text].act(text) for text in shown)))


def test_1_order_of_asking() -> None:
    slow = Slow(seconds={"a": 0.03, "b": 0.0, "c": 0.01})
    (played,) = run(lambda episode: together(episode, "a", "b", "c"), roles={"*": Role(policy=slow)})
    assert [(step.agent, step.turn) for step in played.steps] == [("a", 0), ("b", 1), ("c", 2)]


def test_2_two_draws() -> None:
    slow = Slow()

    async def twice(episode: Episode) -> None:
        agent = episode.agents["a"]
        await asyncio.gather(agent.act("x"), agent.act("y"))

    run(twice, roles={"*": Role(policy=slow)})
    assert len(set(slow.seeds)) == 2


def test_3_calls() -> None:
    slow = Slow()

    async def calls(episode: Episode) -> None:
        main = episode.agents["main"]
        await main.act("plan")
        one, two = episode.invoke("sub", parent=main), episode.invoke("sub", parent=main)
        await asyncio.gather(one.act("x"), two.act("y"))
        await one.act("z")
        one.reward(0.5)
        await main.act("done")

    (played,) = run(calls, roles={"*": Role(policy=slow)})
    told = [(s.agent, s.invocation, s.parent, s.segment, s.reward, s.terminated) for s in played.steps]
    assert told == [
        ("main", 0, None, 0, 0.0, False),
        ("sub", 1, 0, 4096, 0.0, False),
        ("sub", 2, 0, 8192, 0.0, True),
        ("sub", 1, 0, 4096, 0.5, True),
        ("main", 0, None, 0, 0.0, True),
    ]
    assert played.returns == {"sub": 0.5}
    assert len(set(slow.seeds)) == 5
    assert sorted(key[2:] for key in slow.ended) == [("main",), ("sub", 1), ("sub", 2)]  # type: ignore[index]


def test_4_acting_for_agents() -> None:
    def answer(turn: int, observation: Observation) -> str:
        return (observation.text or "").split()[-1]

    async def relay(episode: Episode) -> None:
        seen = (await episode.reset()).observations["player"]
        hint = await episode.agents["reader"].act(seen)
        said = await episode.agents["speaker"].act(f"say {hint.text}")
        await episode.step({"speaker": said})

    (played,) = run(relay, roles={"*": Role(policy=ScriptedPolicy(answer))})
    assert played.outcome == 1.0
    assert played.returns == {"speaker": 1.0}
    assert [(step.reward, step.terminated) for step in played.steps] == [(0.0, True), (1.0, True)]


@pytest.mark.parametrize(
    ("roles", "fault"),
    [
        ({"a": Role(policy=Slow(), acts_for="nobody")}, "it is no agent"),
        ({"*": Role(policy=Slow())}, "two roles act for"),
    ],
)
def test_5_acting_for_nobody(roles: Any, fault: str) -> None:
    async def both(episode: Episode) -> None:
        await episode.reset()
        names = ("a",) if "a" in roles else ("a", "b")
        await episode.step({name: await episode.agents[name].act("x") for name in names})

    (played,) = run(both, roles=roles)
    assert played.error is not None
    assert played.error.boundary == "part"
    assert fault in played.error.message
    assert "agents.a.acts_for" in played.error.message or "agents.b.acts_for" in played.error.message


def test_6_nobody_acts() -> None:
    async def idle(episode: Episode) -> None:
        await episode.reset()

    (played,) = run(idle)
    assert played.stop is StopReason.ERROR
    assert "no role has acted" in (played.error.message if played.error else "")


def test_7_deadlock() -> None:
    slow = Slow(seconds={"long": 0.5})

    async def waits(episode: Episode) -> None:
        await episode.agents["a"].act("x")
        if int(episode.play.group) % 2:
            await asyncio.gather(_wait(), _wait())
        await episode.agents["b"].act("long")

    async def _wait() -> None:
        await asyncio.Event().wait()

    played = run(waits, count=4, roles={"*": Role(policy=slow)}, stuck_seconds=0.1)
    assert [one.stop.value for one in played] == ["completed", "error", "completed", "error"]
    message = played[1].error.message if played[1].error else ""
    assert "it stands still" in message
    assert "a (1 acts)" in message


def test_8_left_behind() -> None:
    slow = Slow(seconds={"long": 60.0})
    (played,) = run(lambda episode: together(episode, "long", "fail"), roles={"*": Role(policy=slow)})
    assert played.stop is StopReason.ERROR
    assert slow.canceled == ["long"]
    assert played.steps == []


def test_9_prompt_and_parser() -> None:
    async def asks(episode: Episode) -> None:
        judge = episode.agents["judge"]
        assert await judge.ask("yes", parse) == 1
        assert await judge.ask("what", parse) is None

    def parse(text: str) -> int | None:
        return {"you judge: yes": 1}.get(text)

    (played,) = run(asks, roles={"*": Role(policy=Slow(), prompt="you judge: {text}")})
    assert [step.info.get("invalid", 0.0) for step in played.steps] == [0.0, 1.0]
    (played,) = run(
        asks, roles={"*": Role(policy=Slow(), prompt="{text}!", parser=lambda text: len(text) // 4 or None)}
    )
    assert played.stop is StopReason.ERROR  # "what!" now means 1
    assert played.steps[0].observation.text == "yes!"


@pytest.mark.parametrize(("temperature", "expected"), [(None, 0.3), (0.0, 0.0)])
def test_10_own_sampling(temperature: float | None, expected: float) -> None:
    slow = Slow()
    role = Role(policy=slow, sampling={"temperature": 0.3, "max_tokens": 5})
    setup = RunSetup(
        environment_name="echo",
        make_environment=EchoEnvironment,
        roles={"*": role},
        program=lambda episode: together(episode, "x"),
        environment_options={},
    )
    play = Play(task=EchoEnvironment().tasks("train", 1, seed=1)[0], group="g", sample=0, seed=1)
    EpisodeRunner(setup, RolloutSettings(response_tokens=9)).collect([play], temperature=temperature)
    assert (slow.samplings[0].temperature, slow.samplings[0].max_tokens) == (expected, 5)


def test_11_roles_of_a_play() -> None:
    roles = {"*": Role(policy=Slow()), "old": Role(policy=Slow(name="main@3"), opponent=True)}
    (played,) = run(lambda episode: together(episode, "a", "b"), roles=roles, plays={"roles": {"b": "old"}})
    assert [(step.agent, step.policy) for step in played.steps] == [("a", "slow"), ("b", "main@3")]
    assert StepTable.from_trajectories([played]).row_weight.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("make", [ValueError, KeyError])
def test_12_one_raises(make: Callable[..., Exception]) -> None:
    async def raises(episode: Episode) -> None:
        await episode.agents["a"].act("x")
        if episode.play.group == "001":
            raise make("the verifier of 001")

    played = run(raises, count=3)
    assert [one.error is None for one in played] == [True, False, True]
    assert "the verifier of 001" in (played[1].error.message if played[1].error else "")
    assert "(test_teams_in_episodes.py, line " in (played[1].error.message if played[1].error else "")


async def proposals(episode: Episode) -> None:
    """A judge reads each act before it is done."""
    result = await episode.reset()
    while result.observations:
        action = await episode.agents["solver"].act(result.observations["player"])
        await episode.agents["judge"].act(action.text or "")
        result = await episode.step({"solver": action})


def test_13_cut_off() -> None:
    roles = {"solver": Role(policy=Slow(), prompt="you solve. {text}"), "judge": Role(policy=Slow())}
    (played,) = run(proposals, turns=3, roles=roles, max_turns=2)
    assert played.stop is StopReason.MAX_TURNS and [step.truncated for step in played.steps[-2:]] == [True, True]
    assert set(played.last) == {"solver"}  # nobody had asked the judge yet
    assert (played.last["solver"].text or "").startswith("you solve. say ")


@pytest.mark.parametrize("asked_first", [True, False])
def test_13_cut_off_by_another(asked_first: bool) -> None:
    async def judged(episode: Episode) -> None:
        solver, judge = episode.agents["solver"], episode.agents["judge"]
        result = await episode.reset()
        while True:
            action = await solver.act(result.observations["player"])
            await judge.act("x")
            result = await episode.step({"solver": action})
            if asked_first:
                await solver.act(result.observations["player"])
            await judge.act("y")
            await judge.act("z")

    roles = {"solver": Role(policy=Slow(), prompt="you solve. {text}"), "judge": Role(policy=Slow())}
    (played,) = run(judged, turns=3, roles=roles, max_turns=2)
    assert played.stop is StopReason.MAX_TURNS and played.last["judge"].text == "z"
    if asked_first:  # it has answered, and nothing new was shown to it
        assert set(played.last) == {"judge"}
    else:
        assert (played.last["solver"].text or "").startswith("you solve. say ")


def test_13_a_call_is_cut_off() -> None:
    async def calls(episode: Episode) -> None:
        done, cut = episode.invoke("sub"), episode.invoke("sub")
        for agent in (done, cut, cut):
            await agent.act("x")

    (played,) = run(calls, max_turns=1)
    assert [(step.invocation, step.terminated, step.truncated) for step in played.steps] == [
        (1, True, False),
        (2, False, True),
    ]


def test_14_paid_in_advance() -> None:
    async def pays(episode: Episode) -> None:
        episode.reward("b", -0.75)
        await episode.agents["a"].act("x")
        episode.reward("b", -0.25)
        for _ in range(2):
            await episode.agents["b"].act("y")

    (played,) = run(pays)
    assert [step.reward for step in played.steps] == [0.0, -1.0, 0.0] and played.returns == {"b": -1.0}


def test_15_left_behind() -> None:
    slow = Slow()

    async def waits(episode: Episode) -> None:
        if episode.play.group == "000":
            left.append(asyncio.create_task(_late(episode)))
            await episode.agents["a"].act("x")
        else:
            await asyncio.sleep(0.05)  # so that the loop lives on
            await episode.agents["a"].act("x")

    left: list[asyncio.Task[None]] = []
    played = run(waits, count=2, roles={"*": Role(policy=slow)})
    assert [len(one.steps) for one in played] == [1, 1] and left[0].cancelled()
    assert len(slow.ended) == 2


async def _late(episode: Episode) -> None:
    await asyncio.sleep(0.01)
    await episode.agents["late"].act("x")


def test_16_nothing_to_put_it_around() -> None:
    async def shows(episode: Episode) -> None:
        await episode.agents["a"].act(Observation(vector=np.zeros(2, np.float32)))

    (played,) = run(shows, roles={"*": Role(policy=Slow(), prompt="you judge. {text}")})
    assert played.error is not None and "agents.a.prompt" in played.error.message


@acted_by("solver")
async def misspelled(episode: Episode) -> None:
    await episode.agents["solvr"].act("x")


def test_17_misspelled_in_the_program() -> None:
    (played,) = run(misspelled)
    told = played.error.message if played.error else ""
    assert "`solvr`, which is none of its roles" in told and "solver" in told


def test_17_nobody_plays_it() -> None:
    (played,) = run(lambda episode: together(episode, "judge"), roles={"solver": Role(policy=Slow())})
    assert "no role is called `judge`" in (played.error.message if played.error else "")


@pytest.mark.parametrize("what", ["shown", "done", "not awaited"])
def test_18_neither_seen_nor_done(what: str) -> None:
    async def slips(episode: Episode) -> None:
        await episode.reset()
        act = episode.agents["a"].act(None if what == "shown" else "x")  # type: ignore[arg-type]
        if what == "not awaited":
            try:
                await episode.step({"a": act})  # type: ignore[dict-item]
            finally:
                act.close()
        await episode.step({"a": (await act).text})  # type: ignore[dict-item]

    (played,) = run(slips)
    told = played.error.message if played.error else ""
    assert (
        "role a" in told
        and ("coroutine" if what == "not awaited" else "NoneType" if what == "shown" else "str") in told
    )
