"""The bodies of requests: their JSON, whose values are counted, the thread that reads large ones, and the room for all
bodies that a server holds at once."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]  # written in Python
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeVar

from palaestra.http.rules import KIB, MIB, Limits, Refusal, full, many_values

LARGE = 256 * KIB  # bytes of a body that is read in the thread
QUICK = 2**14  # lists, objects and commas of a body that json reads in C. Nothing else runs meanwhile
VALUES, CONTAINERS = 2**20, 2**17  # most in a body; containers are lists, objects and the members of objects
DIGITS = 400  # of a number; the time to read one grows with their square
Result = TypeVar("Result")
Waiting = deque[tuple[int, asyncio.Future[None]]]


def json_of(body: bytes) -> Any:
    """The JSON value of a body. Raises: Refusal, if it is none, or has too many values."""
    kind = json.JSONDecoder if len(body) <= LARGE or _is_quick(body) else _Counting
    try:
        return json.loads(body, cls=kind, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is no JSON: {error}.", code="invalid_json") from None


def _is_quick(body: bytes) -> bool:
    """Whether a body has few lists, objects and commas, those in its texts included."""
    view, count = memoryview(body), 0
    for start in range(0, len(body), MIB):
        piece = bytes(view[start : start + MIB])
        count += sum(piece.count(sign) for sign in (b"[", b"{", b","))
        if count > QUICK:
            return False
    return True


class _Counting(json.JSONDecoder):
    """Counts values. It is the standard library's decoder in Python, so other threads run meanwhile."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parse_object, self.parse_array = self._object, self._array
        self.scan_once = py_make_scanner(self)
        self._scan: Any = None
        self._values = self._containers = 0

    def _object(self, start: Any, strict: bool, scan: Any, *rest: Any) -> Any:
        self._begin(scan)
        return JSONObject(start, strict, self._member, *rest)

    def _array(self, start: Any, scan: Any) -> Any:
        self._begin(scan)
        return JSONArray(start, self._value)

    def _begin(self, scan: Any) -> None:
        self._scan, self._containers = scan, self._containers + 1
        if self._containers > CONTAINERS:
            raise many_values(CONTAINERS, "lists, objects and members of objects")

    def _member(self, text: str, start: int) -> Any:
        self._begin(self._scan)
        return self._value(text, start)

    def _value(self, text: str, start: int) -> Any:
        self._values += 1
        if self._values > VALUES:
            raise many_values(VALUES, "values")
        return self._scan(text, start)


def _integer(digits: str) -> int:
    _refuse_digits(digits)
    return int(digits)


def _float(digits: str) -> float:
    _refuse_digits(digits)
    return float(digits)


def _refuse_digits(digits: str) -> None:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has more than {DIGITS} digits")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no number {name}")


class Apart:
    """Reads large bodies in a thread of its own, one after the other. Several threads would slow the server down."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def read(self, body: bytes, read: Callable[..., Result], *arguments: Any) -> Result:
        """What `read` returns for these arguments and the body; at once for a small one. Raises: what `read` raises."""
        if len(body) <= LARGE:
            return read(*arguments, body)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "palaestra bodies")
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(read, *arguments, body))


class Room:
    """The room for all bodies that a server holds at once. A body that finds none waits a while. Small and large ones
    wait apart, each in the order of arrival. The last eighth of the room is for small ones alone.

    Args:
        limits: `held_bytes`, `body_bytes` and `body_s` count.
    """

    def __init__(self, limits: Limits) -> None:
        self._largest, self._patience_s = limits.body_bytes, limits.body_s
        self._most = max(limits.held_bytes, 2 * self._largest)
        self._held = 0
        self._waiting: tuple[Waiting, Waiting] = (deque(), deque())

    @asynccontextmanager
    async def holding(self, headers: Mapping[str, str]) -> AsyncIterator[Callable[[int], None]]:
        """A context with room for the body of a request; for the largest one, if the headers do not say its length.

        It gives a function, to be called with the length when that is known.

        Raises: Refusal, if no room is free in time.
        """
        size = self._largest if "transfer-encoding" in headers else int(headers.get("content-length", 0))
        await self._take(size)

        def keep(length: int) -> None:
            nonlocal size
            size, unused = length, size - length
            self._give(unused)

        try:
            yield keep
        finally:
            self._give(size)

    async def _take(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[size > LARGE].append((size, turn))
        self._give(0)
        try:
            async with asyncio.timeout(self._patience_s):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # it came at the same moment
                self._give(size)
            if isinstance(error, TimeoutError):
                raise full(self._most) from None
            raise

    def _give(self, size: int) -> None:
        """Give room back, and let those that wait have it."""
        self._held -= size
        for waiting, most in zip(self._waiting, (self._most, self._most * 7 // 8), strict=True):
            while waiting and (waiting[0][1].done() or self._held + waiting[0][0] <= most):
                wanted, turn = waiting.popleft()
                if not turn.done():  # else its client has left
                    self._held += wanted
                    turn.set_result(None)
