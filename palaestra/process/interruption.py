"""Ends work at Ctrl-C, SIGTERM and SIGHUP by an exception, at a moment at which nothing is lost.

`stoppable` catches the signals. Inside it, `deferred` marks work that must not be cut in the middle, such as an update
of weights or the writing of a checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from palaestra.errors import PalaestraError

NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
SIGNALS = {getattr(signal, name): said for name, said in NAMES.items() if hasattr(signal, name)}
USUAL = (signal.SIG_DFL, signal.default_int_handler)  # Python's own handlers
OF_LOOPS = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)  # where the code of event loops is
ECHO = 1.0  # seconds; a shell or a launcher may pass one Ctrl-C on as several signals


class Stopped(KeyboardInterrupt):
    """A signal has ended the work.

    Attributes:
        number: of the signal. at_once: a second signal did not let the work end in order.
        remedy: a line that says what is kept and how to go on; empty, if nobody has set it.
        silent: another process of the run tells the user.
    """

    def __init__(self, number: int, *, at_once: bool = False) -> None:
        super().__init__(SIGNALS.get(number, f"signal {number}"))
        self.number, self.at_once, self.remedy, self.silent = number, at_once, "", False

    @property
    def status(self) -> int:
        """The exit status of a program that this signal ends, such as 130 for Ctrl-C."""
        return 128 + self.number


class Interruption:
    """What `stoppable` gives. Until a signal arrives, it does nothing.

    Attributes:
        received: number of the first signal; None before it.
        notify: gets a line if a signal arrives while work must not be cut.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.notify: Callable[[str], None] | None = None
        self._when = 0.0
        self._deferred = 0

    def check(self) -> None:
        """Call it between two pieces of work. Raises: Stopped, if a signal has arrived."""
        if self.received is not None:
            raise Stopped(self.received)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A context in which the first signal raises nothing. A second one, a moment later, raises Stopped at once."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    @contextmanager
    def allowed(self, when: bool = True) -> Iterator[None]:
        """A context inside of `deferred` in which a signal raises again, if `when` is true. Raises: as `check`."""
        if not when:
            yield
            return
        held, self._deferred = self._deferred, 0
        try:
            self.check()
            yield
        finally:
            self._deferred = held

    def signal(self, number: int, frame: FrameType | None = None) -> None:
        """The handler of the signals. Raises: Stopped, here or in the event loop, unless the signal must wait."""
        now = time.monotonic()
        if self.received is not None:
            if now - self._when < ECHO:
                return
            _stop(Stopped(number, at_once=True), frame)
            return
        self.received, self._when = number, now
        if not self._deferred:
            _stop(Stopped(number), frame)
            return
        if self.notify is not None:
            self.notify(f"{SIGNALS[number]}: the run stops after this iteration. A second one stops it at once.")


def ignore_late() -> None:
    """Ignore the signals from now on. The work is over, and Python needs a second to end: a signal then neither changes
    the exit status nor prints a traceback."""
    for number in SIGNALS:
        if signal.getsignal(number) in USUAL:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def exits_refused() -> Iterator[None]:
    """A context in which `exit()` in the code of a user is an error, since the program would seem to have ended well.

    Raises: PalaestraError, which names the line.
    """
    try:
        yield
    except SystemExit as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "_sitebuiltins" not in one.filename]
        raise PalaestraError(
            where=f"{os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno}" if frames else "exit",
            what=f"it ended the program by `exit` (status {error.code}), before the work was done.",
            remedy="Raise another error there. That of an environment, a reward function or a tool fails one episode.",
        ) from error


def _stop(stopped: Stopped, frame: FrameType | None) -> None:
    """Raise `stopped` here, or in the next turn of this thread's event loop.

    asyncio takes the step of a task from its queue and then runs it. An exception between the two would lose the step,
    and the task could never be cancelled. So code of asyncio itself is not interrupted, and any other code is.

    Args:
        frame: the code that the signal has interrupted.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # there is none
        raise stopped from None
    loop.set_exception_handler(_unless_stopped)  # it says nothing about the task that ends
    if frame is None or not frame.f_code.co_filename.startswith(OF_LOOPS):
        raise stopped
    loop.call_soon_threadsafe(_raise, stopped)


def _raise(stopped: Stopped) -> None:
    raise stopped


def _unless_stopped(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Stopped):
        loop.default_exception_handler(context)


_active: list[Interruption] = []  # at most one


@contextmanager
def stoppable() -> Iterator[Interruption]:
    """Catch the signals that end a program. Inside another `stoppable`, its `Interruption` is given.

    A signal for which the program has a handler of its own, or which it ignores, is left alone. In another thread than
    the main one nothing is caught, because Python allows it there only.
    """
    if _active:
        yield _active[0]
        return
    made = Interruption()
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: now for number in SIGNALS if (now := signal.getsignal(number)) in USUAL}
    _active.append(made)
    try:
        for number in former:
            signal.signal(number, made.signal)
        yield made
    finally:
        _active.clear()
        for number, handler in former.items():
            signal.signal(number, handler)
