"""The runner: plays many episodes at once. Nothing waits for the slowest; a failed episode stops nobody."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from palaestra.data import Play, RunSetup, StopReason, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import EpisodeFailure
from palaestra.registry import register, registration
from palaestra.rollout.endings import failed, finished, let_out, verdict
from palaestra.rollout.episode import Episode, nobody_acted
from palaestra.rollout.hosts import Host, InlineCalls, LocalHost, ThreadCalls, failure
from palaestra.rollout.limits import DeadlockMonitor, EventLoopMonitor, Limits, deadlock
from palaestra.rollout.roles import Program
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext, Strategy, play_through
from palaestra.rollout.workers import WorkerPool
from palaestra.tools.threads import Threads


@register("rollout", "episodes")
class EpisodeRunner:
    """Plays async programs in one event loop, `in_flight` at a time."""

    forks, opens = True, True  # episodes can branch off from others, and go on by themselves (palaestra.registry)

    def __init__(self, setup: RunSetup, settings: RolloutSettings) -> None:
        self._setup, self._settings = setup, settings
        self._threads: Threads | None = None
        self._workers: WorkerPool | None = None
        if settings.workers and settings.worker_kind == "thread":
            self._threads = Threads(settings.workers)
        elif settings.workers:
            self._workers = WorkerPool(setup.make_environment, settings.workers)

    def collect(
        self, plays: Sequence[Play], *, temperature: float | None = None, program: Program | None = None
    ) -> list[Trajectory]:
        """Play all; trajectories in the order of `plays`, failed ones included (stop ERROR, `error` set).

        Args:
            temperature: in place of the settings' (evaluation).
            program: in place of the run's (demonstrations).
        """
        sampling = self.sampling(temperature)
        return self._run(lambda collect: collect(plays, sampling), program=program)

    def perform(
        self, plays: Sequence[Play], strategies: Sequence[Strategy], rollout: RolloutContext
    ) -> list[Trajectory]:
        """Play through strategies, the first outermost. Returns: what they give to the update."""
        return self._run(lambda collect: play_through(strategies, collect)(plays, rollout))

    def _run(
        self, play: Callable[[Any], Awaitable[list[Trajectory]]], *, program: Program | None = None
    ) -> list[Trajectory]:
        """What `play` gives, in an event loop of its own; it may await `collect` as often as it likes."""
        played: list[Trajectory] = []

        async def run() -> None:
            async with self.open(program=program) as collect:
                played.extend(await play(collect))

        # Not the coroutine's result: `asyncio.run` ends with a repr of that, which takes longer than some rollouts.
        asyncio.run(run())
        return played

    @asynccontextmanager
    async def open(
        self, *, program: Program | None = None
    ) -> AsyncIterator[Callable[..., Awaitable[list[Trajectory]]]]:
        """What plays in the running event loop, `rollout.in_flight` episodes at a time over all its calls."""
        gate, monitor = asyncio.Semaphore(self._settings.in_flight), DeadlockMonitor(self._settings.stuck_seconds)

        async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
            async def one(play: Play) -> Trajectory:
                async with _Permit(gate) as permit:
                    play = _leaving(permit, play)
                    return await self._play(play, sampling or self.sampling(), program or self._setup.program, monitor)

            return await asyncio.gather(*(one(play) for play in plays))

        if self._workers is not None:
            self._workers.attach(asyncio.get_running_loop())
        try:
            with EventLoopMonitor(self._setup.environment_name, inline=not self._settings.workers):
                yield collect
        finally:
            monitor.close()
            if self._workers is not None:
                self._workers.detach()

    def sampling(self, temperature: float | None = None) -> Sampling:
        """As the settings say, or at another temperature."""
        s = self._settings
        if temperature is not None:
            return Sampling(temperature=temperature, max_tokens=s.response_tokens, exact=True)
        return Sampling(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, max_tokens=s.response_tokens)

    async def _play(self, play: Play, sampling: Sampling, program: Program, monitor: DeadlockMonitor) -> Trajectory:
        try:
            host = await self._open()
        except EpisodeFailure as error:
            return failed(Trajectory(task=play.task, group=play.group, sample=play.sample), error)
        episode = Episode(play, self._setup, host, Limits.of(play, self._settings), sampling)
        monitor.enter(episode)
        try:
            return await self._perform(episode, program, monitor)
        finally:
            monitor.leave(episode)
            await _close_quietly(host)

    async def _perform(self, episode: Episode, program: Program, monitor: DeadlockMonitor) -> Trajectory:
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
            task, ended = asyncio.current_task(), monitor.ended(episode)
            if task is None or (task.uncancel() if ended else task.cancelling()):
                raise  # somebody ends the run
            fault = deadlock(episode, name, monitor.seconds or 0.0) if ended else let_out(f"program {name}")
            reason = StopReason.ERROR
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                reason, fault = StopReason.TIMEOUT, None
            else:  # a TimeoutError of the program's own is a failure like any other
                reason, fault = verdict(error, f"program {name}")
        await episode.settle()
        return finished(episode, reason, fault)

    async def _open(self) -> Host:
        name = self._setup.environment_name
        if self._workers is not None:
            return await self._workers.open(name, self._settings.step_seconds)
        try:
            environment: Any = self._setup.make_environment()
        except Exception as error:
            raise failure(name, "constructor", error) from error
        if self._threads is not None:
            calls: Any = ThreadCalls(name, environment, self._threads, self._settings.step_seconds)
        else:
            calls = InlineCalls(name, environment)
        return LocalHost(name, environment, calls)

    def close(self) -> None:
        """End worker processes; threads without work end by themselves."""
        if self._workers is not None:
            self._workers.stop()


class _Permit:
    """One of the places for episodes in flight; it is given back only while it is held."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate, self._held = gate, False

    async def __aenter__(self) -> _Permit:
        await self.take()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.give_back()

    async def take(self) -> None:
        """Wait for a place."""
        await self._gate.acquire()
        self._held = True

    def give_back(self) -> bool:
        """Let another episode have the place. Returns: whether it was held."""
        held, self._held = self._held, False
        if held:
            self._gate.release()
        return held


def _leaving(permit: _Permit, play: Play) -> Play:
    """The play, whose episode makes room for others while it pauses: it may wait for them."""
    pause = None if play.branch is None else play.branch.pause
    if pause is None:
        return play

    async def wait(episode: Episode) -> None:
        held = permit.give_back()
        try:
            await pause(episode)
        finally:
            if held:
                await permit.take()  # an episode that is canceled here ends without a place

    return dataclasses.replace(play, branch=dataclasses.replace(play.branch, pause=wait))


def _name(program: Program) -> str:
    target = program if (made := registration(program)) is None else made.target
    return str(getattr(target, "__name__", target))


async def _close_quietly(host: Host) -> None:
    try:
        await host.close()
    except EpisodeFailure:
        pass  # the episode is over and recorded; a second failure of the same environment adds nothing
