"""A bounded pool of threads for tools that wait or compute. A call that hangs is abandoned.

The threads are daemons. The standard library's pool joins its threads when the process ends, so one call that hangs
would keep a finished run from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LIMIT = 32  # calls that run at once
MOST_LOST = 1000  # abandoned calls that still hang; at this number no further call begins
IDLE_S = 1.0  # a thread without work ends after this time


class Late(Exception):
    """A call took longer than allowed, or could not begin because too many others hang."""


@dataclass(slots=True, eq=False)
class Job:
    """One call in the pool."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context
    begun: asyncio.Future[None]
    done: asyncio.Future[tuple[Any, BaseException | None]]
    lost: bool = False
    state: str = "waiting"


@dataclass(slots=True, eq=False)
class Threads:
    """Runs at most `limit` calls at once. Abandoned calls do not count, and others take their place."""

    limit: int = LIMIT
    idle_s: float = IDLE_S
    most_lost: int = MOST_LOST
    alive: int = 0  # threads that take work
    idle: int = 0
    lost: int = 0
    waiting: deque[Job] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)

    async def run(self, function: Callable[[], Any], timeout_s: float | None) -> Any:
        """Run `function()` in a thread. Returns what it returns and raises what it raises.

        Args:
            timeout_s: seconds from the moment when the call begins; waiting for a free thread does not count. None: no
                limit.

        Raises: Late. If the caller is cancelled, the call is abandoned too.
        """
        loop = asyncio.get_running_loop()
        job = Job(function, loop, contextvars.copy_context(), loop.create_future(), loop.create_future())
        self._begin(job)
        try:
            await job.begun
            done, _ = await asyncio.wait({job.done}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if not done:
            self._give_up(job)
            raise Late(f"no answer within {timeout_s:g} s")
        value, error = job.done.result()
        if error is not None:
            raise error
        return value

    def _begin(self, job: Job) -> None:
        with self.changed:
            if self.lost >= self.most_lost:
                raise Late(f"not begun, because {self.lost} earlier calls still hang")
            self.waiting.append(job)
            self._staff()

    def _give_up(self, job: Job) -> None:
        with self.changed:
            if job.state == "running":
                job.lost = True
                self.lost += 1
                self.alive -= 1
                self._staff()
            elif job.state == "waiting":
                self.waiting.remove(job)

    def _staff(self) -> None:
        """Wake or start threads for the calls that wait. The caller holds the lock."""
        if self.waiting and self.idle:
            self.changed.notify()
        while len(self.waiting) > self.idle and self.alive < self.limit:
            threading.Thread(target=self._work, name="tool", daemon=True).start()
            self.alive += 1
            self.idle += 1  # until it has taken its work

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: self.waiting, self.idle_s):
                    self.idle -= 1
                    self.alive -= 1
                    return
                job = self.waiting.popleft()
                self.idle -= 1
                job.state = "running"
            _tell(job.loop, job.begun, None)
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = job.context.run(job.function), None
            except asyncio.CancelledError:  # the tool raised it itself; passed on, it would look like the caller's
                outcome = None, RuntimeError("it was cancelled")
            except BaseException as error:
                outcome = None, error
            with self.changed:
                job.state = "ended"
                if job.lost:
                    self.lost -= 1
                    return
                self.idle += 1
            _tell(job.loop, job.done, outcome)
            del job, outcome  # an idle thread must not keep a large result alive


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(value)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the event loop is closed, so nobody waits for the result


POOL = Threads()
