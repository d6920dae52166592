"""Limits of one episode, and what notices that an episode does not go on.

A limit ends an episode with a reason. A deadlock, where roles wait for each other and for nothing that could ever
happen, ends it as failed. A call of the environment that blocks the event loop cannot be interrupted: a line on the
terminal names the cause and the way out.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from palaestra.data import Play, StopReason
from palaestra.errors import EpisodeFailure
from palaestra.rollout.settings import RolloutSettings

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

CHECKS = 4  # how often an episode is checked before it counts as deadlocked
PATIENCE = 60.0  # seconds without a turn of the event loop


# ---- limits -----------------------------------------------------------------------------------------------
class LimitReached(Exception):
    """Ends an episode before its program is through."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits of one episode; None is no limit. Turns are steps of the environment, or acts of one agent."""

    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, play: Play, settings: RolloutSettings) -> Limits:
        """Those of the settings, but the turns of the play where it says so."""
        turns = settings.max_turns if play.turns is None else play.turns
        return cls(turns=turns, tokens=settings.max_tokens, seconds=settings.max_seconds)


# ---- deadlocks --------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class _Progress:
    """One open episode: the task that plays it, how far it was at the last check, and since when."""

    episode: Episode
    task: asyncio.Task[object]
    moves: int = -1
    since: float = 0.0
    deadlocked: bool = False


@dataclass(slots=True, eq=False)
class DeadlockMonitor:
    """Ends episodes in which nothing happens for `seconds`; None: never.

    An episode is deadlocked when none of its acts, steps or tools is under way and nothing has happened in it for so
    long.
    """

    seconds: float | None
    _open: dict[int, _Progress] = field(default_factory=dict)
    _checks: asyncio.Task[None] | None = None

    def enter(self, episode: Episode) -> None:
        """Monitor an episode that the running task plays."""
        task = asyncio.current_task()
        if self.seconds is None or task is None:
            return
        self._open[id(episode)] = _Progress(episode, task)
        if self._checks is None:
            self._checks = asyncio.get_running_loop().create_task(self._check(self.seconds))

    def leave(self, episode: Episode) -> None:
        """The episode is over."""
        self._open.pop(id(episode), None)

    def ended(self, episode: Episode) -> bool:
        """Whether this monitor is why the episode's task was canceled."""
        progress = self._open.get(id(episode))
        return progress is not None and progress.deadlocked

    def close(self) -> None:
        """Check no more."""
        if self._checks is not None:
            self._checks.cancel()
        self._checks = None

    async def _check(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / CHECKS)
            now = time.monotonic()
            for progress in list(self._open.values()):
                if progress.episode.under_way or progress.episode.moves != progress.moves:
                    progress.moves, progress.since = progress.episode.moves, now
                elif now - progress.since >= seconds and not progress.deadlocked:
                    progress.deadlocked = True
                    progress.task.cancel()


def deadlock(episode: Episode, program: str, seconds: float) -> EpisodeFailure:
    """What a deadlocked episode is recorded with."""
    acted = [f"{name} ({agent.acts} acts)" for name, agent in episode.agents.items()]
    return EpisodeFailure(
        boundary="part",
        where=f"program {program}, episode {episode.trajectory.id}",
        what=f"it stands still: nothing has happened for {seconds:g} s, and no act or step is under way. Roles so far: "
        f"{', '.join(acted) or 'none'}.",
        remedy="Look for roles that wait for each other. If the program waits for something of its own, wrap that in "
        "`with episode.busy():`, or raise `rollout.stuck_seconds`.",
    )


# ---- calls that block the event loop ----------------------------------------------------------------------
class EventLoopMonitor:
    """While entered, a thread checks whether the event loop still turns, and says so where it does not.

    Args:
        name: of the environment.
        inline: whether its methods run in the event loop; otherwise there is nothing to monitor.
        patience: seconds without a turn.
    """

    def __init__(self, name: str, *, inline: bool, patience: float = PATIENCE) -> None:
        self._name, self._patience = name, patience
        self._stop = threading.Event()
        self._beat = threading.Event()
        self._thread = threading.Thread(target=self._check, daemon=True) if inline else None
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> EventLoopMonitor:
        if self._thread is not None:
            self._tick()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        self._beat.set()
        self._handle = asyncio.get_running_loop().call_later(self._patience / 4, self._tick)

    def _check(self) -> None:
        while not self._stop.wait(self._patience):
            if not self._beat.is_set():
                print(
                    f"environment {self._name}: a call has not returned for {self._patience:g} s. If it hangs, stop "
                    "the run (Ctrl-C twice) and set rollout.workers=2 rollout.worker_kind=process "
                    "rollout.step_seconds=10: such episodes then fail and the run goes on.",
                    file=sys.stderr,
                )
            self._beat.clear()
