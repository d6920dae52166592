"""The runner: plays many episodes at once. Nothing waits for the slowest; a failed episode stops nobody.

Knows episodes, hosts and limits. Knows no method, no model and no environment by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from palaestra.data import Failure, StopReason, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError
from palaestra.registry import register
from palaestra.rollout.episode import Episode, nobody_acted
from palaestra.rollout.field import Act, Collect
from palaestra.rollout.hosts import Host, InlineCalls, LocalHost, ThreadCalls, failure
from palaestra.rollout.limits import Halt, Limits
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.stage import Play, Program, Stage
from palaestra.rollout.stuck import Stuck
from palaestra.rollout.stuck import failure as standing_still
from palaestra.rollout.watch import Watch
from palaestra.rollout.workers import WorkerPool
from palaestra.tools.threads import Threads

PACKAGE = Path(__file__).parents[1]


@register("rollout", "episodes")
class EpisodeRunner:
    """Plays async programs in one event loop, `in_flight` at a time."""

    forks = True  # episodes can branch off from others

    def __init__(self, stage: Stage, settings: RolloutSettings) -> None:
        self._stage, self._settings = stage, settings
        self._threads: Threads | None = None
        self._workers: WorkerPool | None = None
        if settings.workers and settings.worker_kind == "thread":
            self._threads = Threads(settings.workers)
        elif settings.workers:
            self._workers = WorkerPool(stage.make_environment, settings.workers)

    def collect(
        self, plays: Sequence[Play], *, temperature: float | None = None, program: Program | None = None
    ) -> list[Trajectory]:
        """Play all; trajectories in the order of `plays`, failed ones included (stop ERROR, `error` set).

        Args:
            temperature: in place of the settings' (evaluation).
            program: in place of the stage's (demonstrations).
        """
        return self.perform(lambda collect: collect(plays, self.sampling(temperature)), program=program)

    def perform(self, act: Act, *, program: Program | None = None) -> list[Trajectory]:
        """Run what plays by awaiting `collect(plays, sampling)`, as often as it likes, also several at a time.

        Args:
            program: in place of the stage's.
        """
        played: list[Trajectory] = []

        async def run() -> None:
            async with self.open(program=program) as collect:
                played.extend(await act(collect))

        # Not the coroutine's result: `asyncio.run` ends with a repr of that, which takes longer than some rollouts.
        asyncio.run(run())
        return played

    @asynccontextmanager
    async def open(self, *, program: Program | None = None) -> AsyncIterator[Collect]:
        """What plays in the running event loop, `rollout.in_flight` episodes at a time over all its calls."""
        gate, stuck = asyncio.Semaphore(self._settings.in_flight), Stuck(self._settings.stuck_seconds)

        async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
            async def one(play: Play) -> Trajectory:
                async with gate:
                    play = _leaving(gate, play)
                    return await self._play(play, sampling or self.sampling(), program or self._stage.program, stuck)

            return await asyncio.gather(*(one(play) for play in plays))

        if self._workers is not None:
            self._workers.attach(asyncio.get_running_loop())
        try:
            with Watch(self._stage.environment_name, idle=not self._settings.workers):
                yield collect
        finally:
            stuck.close()
            if self._workers is not None:
                self._workers.detach()

    def sampling(self, temperature: float | None = None) -> Sampling:
        """As the settings say, or at another temperature."""
        s = self._settings
        if temperature is not None:
            return Sampling(temperature=temperature, max_tokens=s.response_tokens, exact=True)
        return Sampling(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, max_tokens=s.response_tokens)

    async def _play(self, play: Play, sampling: Sampling, program: Program, stuck: Stuck) -> Trajectory:
        try:
            host = await self._open()
        except EpisodeFailure as error:
            return _failed(Trajectory(task=play.task, group=play.group, sample=play.sample), error)
        episode = Episode(play, self._stage, host, Limits.of(play, self._settings), sampling)
        stuck.enter(episode)
        try:
            return await self._perform(episode, program, stuck)
        finally:
            stuck.leave(episode)
            await _close_quietly(host)

    async def _perform(self, episode: Episode, program: Program, stuck: Stuck) -> Trajectory:
        name, clock = _name(program), asyncio.timeout(self._settings.max_seconds)
        reason: StopReason
        fault: EpisodeFailure | None
        try:
            async with clock:
                await program(episode)
            if not episode.latest:
                raise nobody_acted(f"program {name}")
            reason, fault = StopReason.COMPLETED, None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not stuck.found(episode):
                raise
            task.uncancel()
            reason, fault = StopReason.ERROR, standing_still(episode, name, stuck.seconds or 0.0)
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                reason, fault = StopReason.TIMEOUT, None
            else:  # a TimeoutError of the program's own is a failure like any other
                reason, fault = verdict(error, f"program {name}")
        await episode.settle()
        return finished(episode, reason, fault)

    async def _open(self) -> Host:
        name = self._stage.environment_name
        if self._workers is not None:
            return await self._workers.open(name, self._settings.step_seconds)
        try:
            environment: Any = self._stage.make_environment()
        except Exception as error:
            raise failure(name, "constructor", error) from error
        if self._threads is not None:
            calls: Any = ThreadCalls(name, environment, self._threads, self._settings.step_seconds)
        else:
            calls = InlineCalls(name, environment)
        return LocalHost(environment, calls)

    def close(self) -> None:
        """End worker processes; threads without work end by themselves."""
        if self._workers is not None:
            self._workers.stop()


def _leaving(gate: asyncio.Semaphore, play: Play) -> Play:
    """The play, whose episode makes room for others while it waits for its watcher: it may wait for them."""
    watch = play.watch
    if watch is None:
        return play

    async def wait(episode: Episode) -> None:
        gate.release()
        try:
            await watch(episode)
        finally:
            await gate.acquire()

    return dataclasses.replace(play, watch=wait)


def _name(program: Program) -> str:
    target = getattr(getattr(program, "part", None), "target", program)
    return str(getattr(target, "__name__", target))


# ---- how episodes end -------------------------------------------------------------------------------------
def verdict(error: Exception, where: str) -> tuple[StopReason, EpisodeFailure | None]:
    """How an episode ends whose program raised this. Of several errors at once, a failure counts more than a limit."""
    errors = _apart(error)
    faults = [one for one in errors if not isinstance(one, Halt)]
    halts = [one for one in errors if isinstance(one, Halt)]
    return (StopReason.ERROR, _fault(faults[0], where)) if faults else (halts[0].reason, None)


def _apart(error: Exception) -> list[Exception]:
    """The errors that an `asyncio.TaskGroup` of the program has gathered, or the one."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [single for one in error.exceptions for single in _apart(one)]


def _fault(error: Exception, where: str) -> EpisodeFailure:
    """What a program raised, as the failure that the episode is recorded with."""
    if isinstance(error, EpisodeFailure):
        return error
    if isinstance(error, PalaestraError):
        return EpisodeFailure(boundary="part", where=where, what=error.what, options=error.options, remedy=error.remedy)
    return EpisodeFailure(boundary="part", where=where, what=f"{type(error).__name__}: {error}{_line(error)}")


def _line(error: Exception) -> str:
    """` (pair.py, line 12)`: where the user's own code was when it raised; empty, if none of it was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not Path(one.filename).is_relative_to(PACKAGE) and not _installed(one.filename)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _installed(file: str) -> bool:
    """Whether code belongs to Python or to a package that was installed."""
    return "site-packages" in file or file.startswith((sys.base_prefix, sys.prefix, "<"))


def finished(episode: Episode, reason: StopReason, fault: EpisodeFailure | None = None) -> Trajectory:
    """Finish an episode, with the failure that it is recorded with.

    What keeps it from being finished (info that cannot be read, a session that cannot be closed) is a failure of this
    episode only; its sessions are closed all the same.
    """
    try:
        played = episode.finish(reason)
    except Exception as error:
        fault = fault or _unfinished(episode, error)
        played = _given_up(episode)
    return played if fault is None else _failed(played, fault)


def _unfinished(episode: Episode, error: Exception) -> EpisodeFailure:
    """What kept an episode from being finished."""
    where, info = f"environment {episode.stage.environment_name}, info", episode.trajectory.info
    bad = _no_numbers(info)
    if isinstance(error, EpisodeFailure):
        found = error
    elif isinstance(error, ContractError):
        found = EpisodeFailure(
            boundary="environment", where=error.where, what=error.what, options=error.options, remedy=error.remedy
        )
    elif bad:
        what = ", ".join(f"`{name}` is {info[name]!r}" for name in bad)
        remedy = "Tell a number, or true or false; leave it out where there is none."
        found = EpisodeFailure(boundary="environment", where=where, what=f"{what}, no number.", remedy=remedy)
    else:
        what = f"{type(error).__name__}: {error}"
        found = EpisodeFailure(boundary="engine", where="the end of the episode, closing its sessions", what=what)
    if found is not error:
        found.__cause__ = error
    return found


def _no_numbers(info: Mapping[str, Any]) -> list[str]:
    """The names of those results that are told, and no numbers."""
    found = []
    for name in ("success", "score"):
        try:
            float(info.get(name, 0.0))
        except (TypeError, ValueError, OverflowError):
            found.append(name)
    return found


def _given_up(episode: Episode) -> Trajectory:
    """Finish a failed episode whatever its environment told; sessions that cannot be closed are left."""
    played = episode.trajectory
    bad = _no_numbers(played.info)
    played.info = {name: value for name, value in played.info.items() if name not in bad}
    try:
        return episode.finish(StopReason.ERROR)
    except Exception:
        for agent in (*episode.agents.values(), *episode.invoked):
            with suppress(Exception):
                agent.session.end(None)
    return played


def _failed(trajectory: Trajectory, error: EpisodeFailure) -> Trajectory:
    trajectory.stop = StopReason.ERROR
    trajectory.error = Failure(boundary=error.boundary, message=error.render(), kind=type(error.__cause__).__name__)
    return trajectory


async def _close_quietly(host: Host) -> None:
    try:
        await host.close()
    except EpisodeFailure:
        pass  # the episode is over and recorded; a second failure of the same environment adds nothing
