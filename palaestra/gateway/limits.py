"""Limits of a server: the size of bodies, how many requests run at once, and how long they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from palaestra.http.rules import BODY_S, MIB, Limits, Refusal

SPARE = 64  # connections, so that a server with few places can also say that it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of a server.

    Attributes:
        running: most requests that are answered at once. waiting: most that wait for that.
        body_bytes: most bytes of a request. held_bytes: of all requests together, until they are answered.
        seconds: most time of a request, the waiting included.
    """

    running: int = 256
    waiting: int = 1024
    body_bytes: int = 16 * MIB
    held_bytes: int = 256 * MIB
    seconds: float = 600.0

    def of_connections(self) -> Limits:
        """The limits of connections and of what arrives on them.

        More connections than requests may be open: idle ones, and those whose requests are refused.
        """
        return Limits(
            connections=2 * (self.running + self.waiting) + SPARE,
            body_bytes=self.body_bytes,
            held_bytes=self.held_bytes,
            body_s=min(self.seconds, BODY_S),
        )


class Places:
    """The places for requests that are answered at once."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(limits.running)
        self.running = self.waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A context with a place. Raises: Refusal, if too many requests wait."""
        if self._free.locked() and self.waiting >= self._limits.waiting:
            raise Refusal(
                f"{self.running} requests are answered and {self.waiting} wait, which is the most. Ask again later.",
                status=429,
                code="too_many_requests",
                kind="rate_limit_error",
                wait=1,
            )
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()


def over_time(seconds: float) -> Refusal:
    """The refusal of a request that took too long."""
    return Refusal(
        f"the request took longer than {seconds:g} s. Ask for fewer tokens, or let the server have more time.",
        status=504,
        code="timeout",
        kind="server_error",
    )
