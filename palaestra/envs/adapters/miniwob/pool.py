"""The pool of browsers that all episodes of a process share. It ends them when the process ends.

An episode (a `Visit`) holds a browser until another one needs it. The pool then takes the browser away between two
acts, and the episode plays its page again when it gets a browser back. Thus a single browser is enough for any number
of episodes and threads: an episode waits at most for a call of another one, never until the other is over.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from palaestra.envs.adapters.miniwob.browser import Browser


@dataclass(slots=True, eq=False)
class Seat:
    """A browser of the pool.

    Attributes:
        holder: the visit that holds it; None if it is free.
        busy: whether a call runs in it.
        used: the pool's clock at its last call.
    """

    browser: Browser
    holder: object | None = None
    busy: bool = True
    used: int = 0


@dataclass(slots=True)
class Pool:
    """The browsers of a process. Each caller says how many there may be at most."""

    seats: list[Seat] = field(default_factory=list)
    starting: int = 0
    clock: int = 0  # calls so far
    process: int = field(default_factory=os.getpid)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def held(self, visit: object, most: int, address: str) -> Iterator[tuple[Browser, bool]]:
        """A context with a browser for one call, and whether it still shows the page as this visit left it.

        Args:
            visit: the episode that calls.
            most: the pool starts a new browser only if it has fewer than this.
            address: of the page that is needed. Of several free browsers the pool takes one that shows this page.
        """
        seat = self._take(visit, most, address)
        kept = seat.holder is visit
        seat.holder = visit
        try:
            yield seat.browser, kept
        finally:
            with self.changed:
                seat.busy = False
                self.changed.notify()

    def _take(self, visit: object, most: int, address: str) -> Seat:
        with self.changed:
            self._leave_parents_browsers()
            while True:
                seat = self._free(visit, most, address)
                if seat is not None:
                    seat.busy, self.clock = True, self.clock + 1
                    seat.used = self.clock
                    return seat
                if len(self.seats) + self.starting < most:
                    self.starting += 1
                    break
                self.changed.wait()
        return self._start()

    def _free(self, visit: object, most: int, address: str) -> Seat | None:
        """Choose a browser: the visit's own, else one that no visit holds. If no new one may be started, take the one
        that other visits have not used for longest. Returns None if a new one may be started or all are busy.
        """
        idle = [seat for seat in self.seats if not seat.busy]
        for seat in idle:
            if seat.holder is visit:
                return seat
        unheld = [seat for seat in idle if seat.holder is None]
        if unheld:
            return next((seat for seat in unheld if seat.browser.address == address), unheld[0])
        if len(self.seats) + self.starting < most or not idle:
            return None
        return min(idle, key=lambda seat: seat.used)

    def _start(self) -> Seat:
        seat = None
        try:
            seat = Seat(Browser())
        finally:
            with self.changed:
                self.starting -= 1
                if seat is not None:
                    self.clock += 1
                    seat.used = self.clock
                    self.seats.append(seat)
                self.changed.notify_all()
        return seat

    def release(self, visit: object) -> None:
        """Free the browser of a visit that is over."""
        with self.changed:
            for seat in self.seats:
                if seat.holder is visit:
                    seat.holder = None
            self.changed.notify_all()

    def discard(self, browser: Browser) -> None:
        """End a browser that has failed. The next call starts another one."""
        with self.changed:
            self.seats = [seat for seat in self.seats if seat.browser is not browser]
            self.changed.notify_all()
        browser.close()

    def close(self) -> None:
        """End all browsers."""
        with self.changed:
            self._leave_parents_browsers()
            seats, self.seats = self.seats, []
        for seat in seats:
            seat.browser.close()

    def _leave_parents_browsers(self) -> None:
        """Forget the browsers after a fork: they belong to the parent process."""
        if self.process != os.getpid():
            self.process, self.seats, self.starting = os.getpid(), [], 0


BROWSERS = Pool()
# Worker processes and crashes skip this; there each browser's guard ends it (GUARD in `browser`).
atexit.register(BROWSERS.close)
