"""Rules for environments and programs that misbehave. Each is pinned by the test of the same number.

1. `step_seconds` begins when a call begins: waiting for a free thread does not count.
2. A call that nobody waits for any more does not begin, and its environment is closed like any other.
3. A thread whose call never returns is replaced, so that other episodes go on.
4. An `async` step in worker threads has `step_seconds` too; a TimeoutError of its own is its own fault.
5. Info that cannot be read fails its episode only, under both runners, and closes all its sessions.
6. So does a session that cannot be closed.
7. A program's own TimeoutError fails its episode; only the limit `max_seconds` cuts it.
8. A limit among tasks of a program ends the episode with its reason; any failure among them counts more.
9. A CancelledError that a program lets out fails its episode only; one who cancels the run is heard.
10. An episode that is canceled while it waits for its watcher gives back no place that it does not hold.
11. NaN and infinite numbers in info, of environments and of programs, fail their episode only, and never reach a table.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Observation, Play, RunSetup, StepResult, StepTable, StopReason, Trajectory
from palaestra.errors import EpisodeFailure
from palaestra.rollout.branches import Branch
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.testing import EchoEnvironment, ScriptedPolicy


class World(EchoEnvironment):
    """Remembers who was made, who has begun a step and who was closed."""

    made: list[World]

    def __init__(self) -> None:
        super().__init__(turns=1)
        self.began = self.closed = False
        self.made.append(self)

    def close(self) -> None:
        self.closed = True


def world(step: Callable[[World, StepResult], StepResult]) -> type[World]:
    """A world whose step does this."""

    class Made(World):
        made: list[World] = []

        def step(self, actions: Mapping[str, Action]) -> StepResult:
            self.began = True
            return step(self, super().step(actions))

    return Made


def run(
    make: Callable[[], Any] = lambda: EchoEnvironment(turns=1),
    *,
    program: Any = play,
    count: int = 1,
    policy: Any = None,
    runner: type = EpisodeRunner,
    **settings: Any,
) -> list[Trajectory]:
    on = RunSetup(
        environment_name="world",
        make_environment=make,
        roles={"*": Role(policy=policy or ScriptedPolicy(["red"]))},
        program=program,
        environment_options={},
    )
    tasks = EchoEnvironment().tasks("train", count, seed=1)
    made = runner(on, RolloutSettings(**settings))
    try:
        return made.collect([Play(task=task, group=f"{i}", sample=0, seed=i) for i, task in enumerate(tasks)])
    finally:
        made.close()


def said(trajectory: Trajectory) -> str:
    assert trajectory.stop is StopReason.ERROR and trajectory.error is not None
    return trajectory.error.message


# ---- threads ----------------------------------------------------------------------------------------------
def test_1_waiting_is_no_step() -> None:
    slow = world(lambda self, result: (time.sleep(0.1), result)[1])
    played = run(slow, count=8, workers=1, step_seconds=0.4)
    assert {t.stop for t in played} == {StopReason.COMPLETED}
    assert len(slow.made) == 8 and all(one.closed for one in slow.made)


def test_2_what_was_called_off_does_not_begin() -> None:
    async def impatient(episode: Any) -> None:
        result = await episode.reset()
        action = await episode.agents["player"].act(result.observations["player"])
        async with asyncio.timeout(None if episode.play.group == "0" else 0.1):
            await episode.step({"player": action})

    slow = world(lambda self, result: (time.sleep(0.5), result)[1])
    first, *others = run(slow, program=impatient, count=4, workers=1)
    assert first.stop is StopReason.COMPLETED and {t.stop for t in others} == {StopReason.ERROR}
    assert [one.began for one in slow.made] == [True, False, False, False]
    assert all(one.closed for one in slow.made)


def test_3_lost_threads_are_replaced() -> None:
    forever = threading.Event()
    stubborn = world(lambda self, result: result if self is not self.made[0] else (forever.wait(), result)[1])
    played = run(stubborn, count=4, workers=1, step_seconds=0.3)
    forever.set()
    assert "it did not return within 0.3 s (rollout.step_seconds)" in said(played[0])
    assert {t.stop for t in played[1:]} == {StopReason.COMPLETED}
    assert [one.closed for one in stubborn.made] == [False, True, True, True]


def test_4_async_steps_have_a_limit() -> None:
    class Waiting(EchoEnvironment):
        async def step(self, actions: Mapping[str, Action]) -> StepResult:  # type: ignore[override]
            await asyncio.sleep(30)
            return super().step(actions)

    class Offline(EchoEnvironment):
        async def step(self, actions: Mapping[str, Action]) -> StepResult:  # type: ignore[override]
            raise TimeoutError("the site is down")

    (late,), (offline,) = (run(make, workers=1, step_seconds=0.2) for make in (Waiting, Offline))
    assert "it did not return within 0.2 s (rollout.step_seconds)" in said(late)
    assert "TimeoutError: the site is down" in said(offline) and "step_seconds" not in said(offline)


# ---- ends -------------------------------------------------------------------------------------------------
class Sessions(ScriptedPolicy):
    """Remembers which are open; `stuck` cannot be closed."""

    def __init__(self, stuck: Any = None) -> None:
        super().__init__(["red"])
        self.open: set[Any] = set()
        self.stuck = stuck

    def session(self, **given: Any) -> Any:  # type: ignore[override]
        made, key = super().session(**given), given["key"]
        self.open.add(key)

        class Counted(type(made)):  # type: ignore[misc]
            def end(_, observation: Observation | None) -> None:
                if key == self.stuck:
                    raise OSError("the server has gone")
                self.open.discard(key)

        return Counted(made.answers)


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("stop", "out_of_time", "`stop` is 'out_of_time', no reason to stop."),
        ("success", "maybe", "`success` is 'maybe', no number."),
        ("score", [0.5], "`score` is [0.5], no number."),
    ],
)
def test_5_info_that_cannot_be_read(runner: type, name: str, value: Any, fault: str) -> None:
    def step(self: World, result: StepResult) -> StepResult:
        if self._task is not None and self._task.seed == bad:
            result.info.pop("success")
            result.info[name] = value
        return result

    bad, policy = EchoEnvironment().tasks("train", 3, seed=1)[1].seed, Sessions()
    first, broken, last = run(world(step), count=3, policy=policy, runner=runner)
    assert fault in said(broken) and "environment world, info" in said(broken)
    assert broken.error is not None and broken.error.boundary == "environment" and broken.outcome is None
    assert first.stop is last.stop is StopReason.COMPLETED and len(broken.steps) == 1
    assert not policy.open


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_5_what_is_not_known_yet(runner: type) -> None:
    def step(self: World, result: StepResult) -> StepResult:
        result.info["success"] = None
        return result

    (played,) = run(world(step), runner=runner)
    assert played.error is None and played.outcome is None


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_6_sessions_that_cannot_be_closed(runner: type) -> None:
    async def two(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])
        await episode.agents["other"].act("say red")

    policy = Sessions(stuck=("1", 0, "player"))
    first, broken, last = run(program=two, count=3, policy=policy, runner=runner)
    assert "OSError: the server has gone" in said(broken)
    assert first.stop is last.stop is StopReason.COMPLETED
    assert policy.open == {("1", 0, "player")}


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_7_a_timeout_of_its_own(seconds: float | None) -> None:
    async def asking(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])
        raise TimeoutError("the database did not answer")

    (trajectory,) = run(program=asking, max_seconds=seconds)
    assert "TimeoutError: the database did not answer" in said(trajectory) and "program asking" in said(trajectory)


def test_7_the_limit() -> None:
    async def sleepy(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])
        await asyncio.sleep(30)

    (trajectory,) = run(program=sleepy, max_seconds=0.2)
    assert trajectory.stop is StopReason.TIMEOUT and trajectory.error is None and trajectory.steps[-1].truncated


def test_8_limits_among_tasks() -> None:
    async def together(episode: Any) -> None:
        result = await episode.reset()
        while result.observations:
            async with asyncio.TaskGroup() as group:
                acts = [group.create_task(episode.agents[name].act("say red")) for name in ("player", "other")]
            result = await episode.step({"player": acts[0].result()})

    (trajectory,) = run(lambda: EchoEnvironment(turns=3), program=together, max_turns=2)
    assert trajectory.stop is StopReason.MAX_TURNS and trajectory.error is None and len(trajectory.steps) == 4


@pytest.mark.parametrize("nested", [False, True])
def test_8_failures_among_tasks(nested: bool) -> None:
    async def broken() -> None:
        raise EpisodeFailure(boundary="tool", where="the map", what="it is torn.")

    async def together(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])

        async def inner() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(broken())

        async with asyncio.TaskGroup() as group:
            group.create_task(episode.agents["player"].act("say red"))
            group.create_task(inner() if nested else broken())

    (trajectory,) = run(program=together, max_turns=1)
    assert "it is torn." in said(trajectory) and trajectory.error is not None
    assert trajectory.error.boundary == "tool"


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_9_a_cancellation_of_its_own(runner: type) -> None:
    async def canceling(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])
        if episode.play.group == "1":
            raise asyncio.CancelledError

    first, broken, last = run(program=canceling, count=3, runner=runner)
    assert "it let a CancelledError out" in said(broken) and "program" in said(broken)
    assert broken.error is not None and broken.error.boundary == "part"
    assert first.stop is last.stop is StopReason.COMPLETED


def test_9_a_task_of_its_own() -> None:
    async def awaiting(episode: Any) -> None:
        result = await episode.reset()
        await episode.agents["player"].act(result.observations["player"])
        task = asyncio.create_task(asyncio.sleep(30))
        task.cancel()
        await task

    (broken,) = run(program=awaiting)
    assert "it let a CancelledError out" in said(broken)


def _runner(program: Any, **settings: Any) -> tuple[EpisodeRunner, list[Play]]:
    on = RunSetup(
        environment_name="world",
        make_environment=lambda: EchoEnvironment(turns=1),
        roles={"*": Role(policy=ScriptedPolicy(["red"]))},
        program=program,
        environment_options={},
    )
    tasks = EchoEnvironment().tasks("train", 3, seed=1)
    plays = [Play(task=task, group=f"{i}", sample=0, seed=i) for i, task in enumerate(tasks)]
    return EpisodeRunner(on, RolloutSettings(**settings)), plays


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_9_canceling_the_run_is_heard(seconds: float | None) -> None:
    begun: list[str] = []

    async def endless(episode: Any) -> None:
        begun.append(episode.play.group)
        await asyncio.Event().wait()

    runner, plays = _runner(endless, stuck_seconds=seconds)

    async def main() -> None:
        async with runner.open() as collect:
            playing = asyncio.ensure_future(collect(plays))
            while len(begun) < 3:
                await asyncio.sleep(0)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing

    asyncio.run(asyncio.wait_for(main(), timeout=60))


def test_10_places_are_given_back_once() -> None:
    now, most = 0, 0
    go_on, waits = asyncio.Event(), asyncio.Event()

    async def counted(episode: Any) -> None:
        nonlocal now, most
        if episode.play.branch is not None:
            await episode.reset()
            await episode.step({"player": Action(text="red", value="red")})
            await episode.agents["player"].act("say red")
        now, most = now + 1, max(most, now + 1)
        await go_on.wait()
        now -= 1

    async def pause(episode: Any) -> None:
        waits.set()
        await asyncio.Event().wait()

    runner, (paused, *others) = _runner(counted, in_flight=1)

    async def main() -> None:
        async with runner.open() as collect:
            first = asyncio.ensure_future(collect([dataclasses.replace(paused, branch=Branch(pause=pause))]))
            await waits.wait()
            playing = [asyncio.ensure_future(collect([play])) for play in others]
            while not now:  # the place is another episode's
                await asyncio.sleep(0)
            for _ in range(10):  # once out of the pause, once while it waits for a place
                first.cancel()
                await asyncio.sleep(0.01)
            assert first.done()
            go_on.set()
            await asyncio.gather(*playing)

    asyncio.run(asyncio.wait_for(main(), timeout=60))
    assert most == 1


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float64("nan"), np.float32("-inf")])
@pytest.mark.parametrize("of_agent", [True, False])
def test_11_numbers_that_are_none(runner: type, number: Any, of_agent: bool) -> None:
    def step(self: World, result: StepResult) -> StepResult:
        if self._task is not None and self._task.seed == bad:
            result.info["speed"] = {"player": number} if of_agent else number
        else:
            result.info["speed"] = {"player": 1.0}
        return result

    bad, policy = EchoEnvironment().tasks("train", 3, seed=1)[1].seed, Sessions()
    first, broken, last = run(world(step), count=3, policy=policy, runner=runner)
    assert f"`speed` is {number}." in said(broken) and "environment world, info" in said(broken)
    assert ("agent player" in said(broken)) is of_agent
    assert broken.error is not None and broken.error.boundary == "environment" and broken.outcome is None
    assert first.stop is last.stop is StopReason.COMPLETED and not policy.open
    assert StepTable.from_trajectories([first, last])["speed"].tolist() == [1.0, 1.0]


def test_11_what_may_be_missing() -> None:
    def step(self: World, result: StepResult) -> StepResult:
        result.info["process"] = {"player": float("nan")}
        return result

    (played,) = run(world(step))
    assert played.error is None and bool(StepTable.from_trajectories([played])["process"].isnan().all())


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_11_numbers_of_programs(runner: type) -> None:
    async def noting(episode: Any) -> None:
        await play(episode)
        episode.agents["player"].last.info["speed"] = float("inf") if episode.play.group == "1" else 2.0

    policy = Sessions()
    first, broken, last = run(program=noting, count=3, policy=policy, runner=runner)
    assert "`speed` is inf." in said(broken) and "agent player, turn 0" in said(broken)
    assert broken.error is not None and broken.error.boundary == "part"
    assert first.stop is last.stop is StopReason.COMPLETED and not policy.open
