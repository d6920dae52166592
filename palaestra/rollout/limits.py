"""Limits of one episode, and monitors that find deadlocks and calls that block.

A limit ends an episode with a stop reason. A deadlock, in which roles only wait for each other, ends it as failed. A
call of the environment that blocks the event loop cannot be interrupted, so a line on the terminal says what to do.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from palaestra.data import Play, StopReason
from palaestra.rollout.faults import current_task
from palaestra.rollout.settings import RolloutSettings

CHECKS = 4  # how often an episode is checked before it counts as deadlocked
PATIENCE = 60.0  # seconds without a turn of the event loop before the monitor prints a line


# ---- limits -----------------------------------------------------------------------------------------------
class LimitReached(Exception):
    """Raised in a program to end its episode at a limit."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits of one episode; None is no limit. `turns` limits steps of the environment, and acts of each agent."""

    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, play: Play, settings: RolloutSettings) -> Limits:
        """The limits of the settings; the play may have its own limit of turns."""
        turns = settings.max_turns if play.turns is None else play.turns
        return cls(turns=turns, tokens=settings.max_tokens, seconds=settings.max_seconds)

    def reached(self, *, turns: int, tokens: int, seconds: float) -> StopReason | None:
        """The limit that a further act would exceed; None, if it exceeds none."""
        if self.turns is not None and turns >= self.turns:
            return StopReason.MAX_TURNS
        if self.tokens is not None and tokens >= self.tokens:
            return StopReason.MAX_TOKENS
        if self.seconds is not None and seconds >= self.seconds:
            return StopReason.TIMEOUT
        return None


# ---- deadlocks --------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Activity:
    """The acts, steps and tool calls that run in one episode.

    Attributes:
        moves: number of them that have ended.
        under_way: task → number of them that it waits for. The task is None if no event loop runs the program.
    """

    moves: int = 0
    under_way: dict[asyncio.Task[Any] | None, int] = field(default_factory=dict)

    def begin(self) -> asyncio.Task[Any] | None:
        """Record that an act, step or tool call has started. Returns the task that waits for it, for `end`."""
        task = current_task()
        self.under_way[task] = self.under_way.get(task, 0) + 1
        return task

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """Record that it has ended."""
        self.moves += 1
        self.under_way[task] -= 1
        if not self.under_way[task]:
            del self.under_way[task]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A context during which something runs for the episode."""
        task = self.begin()
        try:
            yield
        finally:
            self.end(task)

    async def settle(self) -> None:
        """Cancel acts that the program no longer waits for, for instance after one of several at once has failed."""
        left = [task for task in self.under_way if task is not None and task is not current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@dataclass(slots=True, eq=False)
class _Progress:
    """One open episode: the task that plays it, its `moves` at the last change, and the time of that change."""

    activity: Activity
    task: asyncio.Task[object]
    moves: int = -1
    since: float = 0.0
    deadlocked: bool = False


@dataclass(slots=True, eq=False)
class DeadlockMonitor:
    """Ends deadlocked episodes.

    An episode is deadlocked if no act, step or tool call of it has run for `seconds`. None: no check.
    """

    seconds: float | None
    _open: dict[int, _Progress] = field(default_factory=dict)
    _checks: asyncio.Task[None] | None = None

    def enter(self, activity: Activity) -> None:
        """Start to monitor an episode, which the running task plays."""
        task = asyncio.current_task()
        if self.seconds is None or task is None:
            return
        self._open[id(activity)] = _Progress(activity, task)
        if self._checks is None:
            self._checks = asyncio.get_running_loop().create_task(self._check(self.seconds))

    def leave(self, activity: Activity) -> None:
        """Stop to monitor an episode that is over."""
        self._open.pop(id(activity), None)

    def ended(self, activity: Activity) -> bool:
        """Whether this monitor canceled the episode's task."""
        progress = self._open.get(id(activity))
        return progress is not None and progress.deadlocked

    def close(self) -> None:
        """Stop all checks."""
        if self._checks is not None:
            self._checks.cancel()
        self._checks = None

    async def _check(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / CHECKS)
            now = time.monotonic()
            for progress in list(self._open.values()):
                if progress.activity.under_way or progress.activity.moves != progress.moves:
                    progress.moves, progress.since = progress.activity.moves, now
                elif now - progress.since >= seconds and not progress.deadlocked:
                    progress.deadlocked = True
                    progress.task.cancel()


# ---- calls that block the event loop ----------------------------------------------------------------------
class EventLoopMonitor:
    """A context in which a thread checks that the event loop is not blocked, and prints a line if it is.

    Args:
        name: of the environment.
        caller: the function that calls its methods in the event loop; None: they run elsewhere, and nothing is checked.
            A loop that is blocked outside of this function, such as by a slow engine, is not reported.
        patience: seconds without a turn of the event loop before the line is printed.
    """

    def __init__(self, name: str, *, caller: Callable[..., Any] | None, patience: float = PATIENCE) -> None:
        self._name, self._caller, self._patience = name, caller, patience
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._beat = threading.Event()
        self._thread = threading.Thread(target=self._check, daemon=True) if caller is not None else None
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
            if not self._beat.is_set() and self._is_calling():
                print(
                    f"environment {self._name}: a call has not returned for {self._patience:g} s. If it hangs, stop "
                    "the run (Ctrl-C twice) and set rollout.workers=2 rollout.worker_kind=process "
                    "rollout.step_seconds=10: such episodes then fail and the run goes on.",
                    file=sys.stderr,
                )
            self._beat.clear()

    def _is_calling(self) -> bool:
        """Whether the event loop is in a call of the environment now."""
        frame, code = sys._current_frames().get(self._loop_thread), getattr(self._caller, "__code__", None)
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
        return False
