"""The browsers of this process: few, shared by all episodes, ended with the process.

Knows browsers and who holds them. Knows nothing of pages and tasks. An episode holds a browser until another one needs
it: then it is robbed between two acts, and plays its page again when it comes back. So any number of episodes goes on
with one browser, in one thread or many, and nobody ever waits for an episode, only for a call.
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
    """A browser and the visit that holds it; `busy` during a call."""

    browser: Browser
    holder: object | None = None
    busy: bool = True
    used: int = 0


@dataclass(slots=True)
class Pool:
    """Hands out browsers, at most as many as each caller allows."""

    seats: list[Seat] = field(default_factory=list)
    starting: int = 0
    clock: int = 0
    process: int = field(default_factory=os.getpid)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def held(self, visit: object, most: int, address: str) -> Iterator[tuple[Browser, bool]]:
        """A browser for one call of `visit`, and whether it still shows what this visit left there.

        Args:
            most: no new browser is started where there are that many.
            address: of the page that is needed; of several free browsers, one that shows it is taken.
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
        """The visit's own browser, else an idle one; one in use by another visit only if none may be started."""
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
        """The visit is over; its browser is free for others."""
        with self.changed:
            for seat in self.seats:
                if seat.holder is visit:
                    seat.holder = None
            self.changed.notify_all()

    def discard(self, browser: Browser) -> None:
        """End a browser that does not answer as it should; the next call starts another one."""
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
        """In a forked process: the browsers that were copied with everything else belong to the parent."""
        if self.process != os.getpid():
            self.process, self.seats, self.starting = os.getpid(), [], 0


BROWSERS = Pool()
atexit.register(
    BROWSERS.close
)  # where it does not run, in worker processes or after a crash, each browser's guard ends it
