"""The runner plays many episodes at once. An episode waits for no other, and a failed one does not stop the others."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from palaestra.boundary.cleaning import clean_text
from palaestra.boundary.process import Home, Lent, protected
from palaestra.data import Failure, Play, RunSetup, StopReason, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import EpisodeFailure, MissingExtra, PalaestraError, described, ends_run
from palaestra.registry import register, registration
from palaestra.rollout.branches import BranchingEpisode
from palaestra.rollout.episode import Episode, OpenSession, open_session
from palaestra.rollout.faults import current_task, is_ended
from palaestra.rollout.hosts import Host, InlineCalls, LocalHost, ThreadCalls, failure
from palaestra.rollout.limits import DeadlockMonitor, EventLoopMonitor, LimitReached, Limits
from palaestra.rollout.programs import Program, roles_of
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext, Strategy, play_through
from palaestra.rollout.workers import WorkerPool
from palaestra.tools.threads import Threads

PACKAGE = Path(__file__).parents[1]
MESSAGE = 10_000  # characters of the message of a failure


@register("rollout", "episodes")
class EpisodeRunner:
    """Plays async programs in one event loop, `in_flight` at a time."""

    forks, opens = True, True  # episodes can branch off from others, and go on by themselves (palaestra.registry)
    ignores = ("window",)  # keys of `rollout`

    def __init__(self, setup: RunSetup, settings: RolloutSettings, open_session: OpenSession = open_session) -> None:
        """
        Args:
            open_session: opens an agent's session with a policy.
        """
        self._setup, self._settings, self._open_session = setup, settings, open_session
        self._threads: Threads | None = None
        self._workers: WorkerPool | None = None
        self._home: Home | None = None  # the process at the beginning of a rollout
        if settings.workers and settings.worker_kind == "thread":
            self._threads = Threads(settings.workers)
        elif settings.workers:
            self._workers = WorkerPool(setup.make_environment, settings.workers)

    def collect(
        self, plays: Sequence[Play], *, temperature: float | None = None, program: Program | None = None
    ) -> list[Trajectory]:
        """Play all plays. Returns the trajectories in their order, failed ones included (stop ERROR, `error` set).

        Args:
            temperature: used instead of that of the settings, for evaluations.
            program: used instead of that of the run, for demonstrations.
        """
        sampling = self.sampling(temperature)
        return self._run(lambda collect: collect(plays, sampling), program=program)

    def perform(
        self, plays: Sequence[Play], strategies: Sequence[Strategy], rollout: RolloutContext
    ) -> list[Trajectory]:
        """Play through strategies, of which the first is the outermost. Returns the trajectories for the update."""
        return self._run(lambda collect: play_through(strategies, collect)(plays, rollout))

    def _run(
        self, play: Callable[[Any], Awaitable[list[Trajectory]]], *, program: Program | None = None
    ) -> list[Trajectory]:
        """Run `play` in a new event loop and return its result. It may await `collect` several times."""
        played: list[Trajectory] = []

        async def run() -> None:
            async with self.open(program=program) as collect:
                played.extend(await play(collect))

        # Not the coroutine's result: `asyncio.run` ends with a repr of that, which takes longer than some rollouts.
        with protected("a part of the rollout"):
            try:
                asyncio.run(run())
            except (asyncio.CancelledError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "Event loop stopped" not in str(error):
                    raise
                raise loop_ended(self._setup.environment_name, error) from error
        return played

    @asynccontextmanager
    async def open(
        self, *, program: Program | None = None
    ) -> AsyncIterator[Callable[..., Awaitable[list[Trajectory]]]]:
        """A context with a function that plays in the running event loop, `rollout.in_flight` episodes at a time."""
        self._home = Home()
        gate, monitor = asyncio.Semaphore(self._settings.in_flight), DeadlockMonitor(self._settings.stuck_seconds)

        async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
            async def one(play: Play) -> Trajectory:
                async with _Permit(gate) as permit:
                    acting = program or self._setup.program
                    return await self._play(play, sampling or self.sampling(), acting, monitor, permit)

            return await asyncio.gather(*(one(play) for play in plays))

        if self._workers is not None:
            self._workers.attach(asyncio.get_running_loop())
        try:
            caller = None if self._settings.workers else InlineCalls.__call__
            with EventLoopMonitor(self._setup.environment_name, caller=caller):
                yield collect
        finally:
            monitor.close()
            if self._workers is not None:
                self._workers.detach()

    def sampling(self, temperature: float | None = None) -> Sampling:
        """As the settings say, or at another temperature."""
        return sampling_of(self._settings, temperature)

    async def _play(
        self, play: Play, sampling: Sampling, program: Program, monitor: DeadlockMonitor, permit: _Permit
    ) -> Trajectory:
        limits, declared = Limits.of(play, self._settings), roles_of(self._setup.program)
        try:
            host = await self._open()
        except EpisodeFailure as error:
            return failed(Trajectory(task=play.task, group=play.group, sample=play.sample), error)
        episode = Episode(play, self._setup, host, limits, sampling, self._open_session, declared)
        if play.branch is not None:
            BranchingEpisode(episode, permit.lent)  # stands in for its host, and around its sessions
        monitor.enter(episode.activity)
        try:
            return await self._perform(episode, program, monitor)
        finally:
            monitor.leave(episode.activity)
            with suppress(EpisodeFailure):  # the episode is recorded; a second failure of its environment adds nothing
                await episode.host.close()

    async def _perform(self, episode: Episode, program: Program, monitor: DeadlockMonitor) -> Trajectory:
        name, clock, running = _name(program), asyncio.timeout(self._settings.max_seconds), current_task()
        reason: StopReason
        fault: EpisodeFailure | None
        try:
            async with clock:
                await program(episode)
            if not episode.latest:
                raise nobody_acted(f"program {name}")
            reason, fault = StopReason.COMPLETED, None
        except asyncio.CancelledError:
            task, ended = asyncio.current_task(), monitor.ended(episode.activity)
            if task is None or (task.uncancel() if ended else task.cancelling()):
                raise  # somebody ends the run
            fault = deadlock(episode, name, monitor.seconds or 0.0) if ended else let_out(f"program {name}")
            reason = StopReason.ERROR
        except BaseException as error:
            if is_ended(error, running):
                raise
            if isinstance(error, TimeoutError) and clock.expired():
                reason, fault = StopReason.TIMEOUT, None
            else:  # a TimeoutError of the program's own is a failure like any other
                reason, fault = verdict(error, f"program {name}")
        await episode.activity.settle()
        return finished(episode, reason, fault)

    async def _open(self) -> Host:
        name = self._setup.environment_name
        if self._workers is not None:
            return await self._workers.open(name, self._settings.step_seconds)
        lent = Lent(f"environment {name}", self._home or Home())
        try:
            environment: Any = self._setup.make_environment()
        except BaseException as error:
            raise failure(name, "constructor", error) from error
        finally:
            lent.end()
        if self._threads is not None:
            calls: Any = ThreadCalls(name, environment, self._threads, self._settings.step_seconds)
        else:
            calls = InlineCalls(name, environment, lent)
        return LocalHost(name, environment, calls)

    def close(self) -> None:
        """End the worker processes. Threads without work end by themselves."""
        if self._workers is not None:
            self._workers.stop()


def loop_ended(environment: str, error: BaseException) -> PalaestraError:
    """The error for code of a user that ends the event loop in which all episodes are played."""
    done = "canceled its tasks" if isinstance(error, asyncio.CancelledError) else "stopped it"
    return PalaestraError(
        where=f"environment {environment}, or another part of its episodes",
        what=f"all episodes share one event loop, and code of a user {done}.",
        remedy="Cancel only tasks that the code itself has started, and leave the loop running.",
    )


def environment_of(make: Callable[[], Any], name: str) -> Any:
    """A new environment. What its constructor changes in the process is undone."""
    with protected(f"environment {name}"):
        return make()


def sampling_of(settings: RolloutSettings, temperature: float | None = None) -> Sampling:
    """The sampling of the settings, or one at another temperature, which then holds for every role."""
    s = settings
    if temperature is not None:
        return Sampling(temperature=temperature, max_tokens=s.response_tokens, exact=True)
    return Sampling(temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, max_tokens=s.response_tokens)


class _Permit:
    """A place among the episodes in flight. It can be given back only while it is held."""

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
        """Give the place to another episode. Returns whether it was held."""
        held, self._held = self._held, False
        if held:
            self._gate.release()
        return held

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """A context during which another episode may have the place."""
        held = self.give_back()
        try:
            yield
        finally:
            if held:
                await self.take()  # an episode that is canceled here ends without a place


def _name(program: Program) -> str:
    target = program if (made := registration(program)) is None else made.target
    return str(getattr(target, "__name__", target))


# ---- how episodes end ------------------------------------------------------------------------------------
def verdict(error: BaseException, where: str) -> tuple[StopReason, EpisodeFailure | None]:
    """The end of an episode whose program raised this error. Of several errors, a failure goes before a limit.

    Raises: MissingExtra, if it is among the errors, since all episodes need the package; an error that ends the run.
    """
    if ends_run(error):
        raise error
    errors = _single_errors(error)
    for single in errors:
        if isinstance(single, MissingExtra):
            raise single
    faults = [single for single in errors if not isinstance(single, LimitReached)]
    limits = [single for single in errors if isinstance(single, LimitReached)]
    return (StopReason.ERROR, _fault(faults[0], where)) if faults else (limits[0].reason, None)


def let_out(where: str) -> EpisodeFailure:
    """The failure of an episode whose program raised CancelledError though nobody had canceled the episode."""
    return EpisodeFailure(
        boundary="part",
        where=where,
        what="it let a CancelledError out, and nobody had canceled the episode.",
        remedy="If it cancels a task of its own and awaits it, catch the error: "
        "`with contextlib.suppress(asyncio.CancelledError): await task`.",
    )


def _single_errors(error: BaseException) -> list[BaseException]:
    """The single errors of an exception group, such as that of an `asyncio.TaskGroup`, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [single for inner in error.exceptions for single in _single_errors(inner)]


def _fault(error: BaseException, where: str) -> EpisodeFailure:
    """The error of a program as the failure that the episode records."""
    if isinstance(error, EpisodeFailure):
        return error
    if isinstance(error, PalaestraError):
        return EpisodeFailure(boundary="part", where=where, what=error.what, options=error.options, remedy=error.remedy)
    return EpisodeFailure(boundary="part", where=where, what=f"{described(error)}{_line(error)}")


def _line(error: BaseException) -> str:
    """The place in the user's own code that raised, such as ` (pair.py, line 12)`; empty, if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE) and not _installed(frame.filename)
    ]
    return f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""


def _installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return "site-packages" in file or file.startswith((sys.base_prefix, sys.prefix, "<"))


def nobody_acted(where: str) -> EpisodeFailure:
    """The failure of an episode whose program ended without an act."""
    return EpisodeFailure(
        boundary="part",
        where=where,
        what="it has ended, and no role has acted.",
        remedy="Let it call `await episode.agents[role].act(observation)`; an episode without acts teaches nothing.",
    )


def deadlock(episode: Episode, program: str, seconds: float) -> EpisodeFailure:
    """The failure of a deadlocked episode."""
    acted = [f"{name} ({agent.acts} acts)" for name, agent in episode.agents.items()]
    return EpisodeFailure(
        boundary="part",
        where=f"program {program}, episode {episode.trajectory.id}",
        what=f"it stands still: nothing has happened for {seconds:g} s, and no act or step is under way. Roles so far: "
        f"{', '.join(acted) or 'none'}.",
        remedy="Look for roles that wait for each other. If the program waits for something of its own, wrap that in "
        "`with episode.busy():`, or raise `rollout.stuck_seconds`.",
    )


def finished(episode: Episode, reason: StopReason, fault: EpisodeFailure | None = None) -> Trajectory:
    """Finish an episode and return its trajectory, with its failure if there is one.

    An error at the end, such as a session that cannot be closed, is a failure of this episode only. Its other sessions
    are closed in any case.
    """
    try:
        played = episode.finish(reason)
    except BaseException as error:
        if ends_run(error):
            raise
        fault = fault or _unfinished(error)
        played = episode.trajectory
        for agent in (*episode.agents.values(), *episode.invoked):
            with suppress(Exception):
                agent.session.end(None)
    return played if fault is None else failed(played, fault)


def _unfinished(error: BaseException) -> EpisodeFailure:
    """The failure of an episode whose end raised an error."""
    if isinstance(error, EpisodeFailure):
        return error
    what = described(error)
    fault = EpisodeFailure(boundary="engine", where="the end of the episode, closing its sessions", what=what)
    fault.__cause__ = error
    return fault


def failed(trajectory: Trajectory, error: EpisodeFailure) -> Trajectory:
    """Record the failure on the trajectory, and return it."""
    trajectory.stop = StopReason.ERROR
    message = clean_text(error.render(), trajectory.replaced, most=MESSAGE)
    trajectory.error = Failure(boundary=error.boundary, message=message, kind=type(error.__cause__).__name__)
    return trajectory
