"""Bodies of requests: (1) JSON is read as the standard library reads it, whether it is small or large; (2) a large body
with too many values is refused before it is read to its end, and so are numbers with too many digits; (3) large bodies
are read in a thread, one after the other, and small ones at once; (4) the bodies that a server holds have a limit
together: others wait in the order of arrival, small ones overtake large ones, and what waits too long is refused; (5)
whoever leaves gives its room back; (6) while a server reads a large body, it answers others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from palaestra.http import bodies, streams
from palaestra.http.addresses import bound
from palaestra.http.bodies import LARGE, Apart, Room, json_of
from palaestra.http.rules import MIB, Limits, Refusal, Rules
from palaestra.http.streams import Asked, Streams, answer_bytes

SPACES = b" " * (LARGE + 1)
VALUE = {"a": [1, -2.5e3, "ä😀\\", None, True, {"": []}], "b": {"a": "x" * 100}, "c": [[]] * 30_000}


def refused(body: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        json_of(body)
    return caught.value


# ---- (1) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", [b"", SPACES], ids=["small", "large"])
def test_1_json(before: bytes) -> None:
    for value in (VALUE, [], 7, "x", [VALUE] * 3):
        assert json_of(before + json.dumps(value).encode()) == value
    assert json_of(json.dumps(VALUE).encode("utf-16")) == VALUE
    for bad in (b"", b"{", b"[1,]", b'{"a":1,}', b"[1 2]", b"NaN", b"[-Infinity]", b"1 2", b"\xff\xff", b"[" * 100_000):
        assert refused(before + bad).code == "invalid_json"


# ---- (2) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [b"[" + b"[]," * 10**5, b"[" + b"1," * 10**6, b"[" + b'{"a":{}},' * 10**5, b"{" + b'"a":0,' * 10**5],
    ids=["lists", "numbers", "objects", "members"],
)
def test_2_too_many_values(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "VALUES", 2**14)
    monkeypatch.setattr(bodies, "CONTAINERS", 2**12)
    refusal = refused(body)  # its end, where it is no JSON, is not reached
    assert refusal.status == 413 and refusal.code == "request_too_large"


def test_2_as_many_as_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bodies.VALUES > 10**6, "the ids of a prompt as long as the longest contexts"
    monkeypatch.setattr(bodies, "QUICK", 0)
    monkeypatch.setattr(bodies, "VALUES", 1000)
    monkeypatch.setattr(bodies, "CONTAINERS", 100)
    for most, value in ((1000, 7), (99, []), (99, {}), (49, {"a": 7}), (33, {"a": []})):
        values = [value] * most
        assert json_of(SPACES + json.dumps(values).encode()) == values
        assert refused(SPACES + json.dumps([*values, value]).encode()).status == 413
    text = "[]{}," * 10**5
    assert json_of(json.dumps([text]).encode()) == [text], "those in a text do not count"


@pytest.mark.parametrize("number", ["9" * 401, "0." + "1" * 400, "-" + "9" * 400])
def test_2_digits(number: str) -> None:
    for body in (number.encode(), SPACES + number.encode()):
        assert "400 digits" in refused(body).message
    assert json_of(number[:300].encode()) == json.loads(number[:300])


# ---- (3) ----------------------------------------------------------------------------------------------------
def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_3_one_after_the_other() -> None:
    running: list[int] = []
    most: list[int] = []

    def read(name: str, body: bytes) -> tuple[str, int]:
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.02)
        running.pop()
        return name, threading.get_ident()

    async def work() -> None:
        apart, here = Apart(), threading.get_ident()
        assert await apart.read(b"x" * LARGE, read, "small") == ("small", here)
        found = await asyncio.gather(*(apart.read(SPACES, read, str(number)) for number in range(5)))
        assert [name for name, _ in found] == list("01234") and {place for _, place in found} != {here}

    run(work())
    assert max(most) == 1


# ---- (4) ----------------------------------------------------------------------------------------------------
def said(size: int) -> dict[str, str]:
    return {"content-length": str(size)}


async def held(room: Room, size: int, order: list[int], go_on: asyncio.Event) -> None:
    async with room.holding(said(size)):
        order.append(size)
        await go_on.wait()


def room_of(patience: float = 30.0) -> Room:
    return Room(Limits(held_bytes=8 * MIB, body_bytes=3 * MIB, body_s=patience))


def test_4_others_wait() -> None:
    async def work() -> None:
        room, go_on, order = room_of(), asyncio.Event(), list[int]()
        sizes = [3 * MIB, 3 * MIB, 3 * MIB + 1, LARGE + 1, 1, 0, LARGE]
        waiting = [asyncio.create_task(held(room, size, order, go_on)) for size in sizes]
        await asyncio.sleep(0.05)
        assert order == [3 * MIB, 3 * MIB, 1, 0, LARGE], "small ones overtake, and the large ones keep their order"
        go_on.set()
        await asyncio.gather(*waiting)
        assert order[5:] == [3 * MIB + 1, LARGE + 1] and room._held == 0

    run(work())


def test_4_a_share_for_small_ones() -> None:
    async def work() -> None:
        room, go_on, order = room_of(), asyncio.Event(), list[int]()
        sizes = [3 * MIB, 3 * MIB, LARGE + 1, LARGE + 1, LARGE + 1, *[LARGE] * 6]
        tasks = [asyncio.create_task(held(room, size, order, go_on)) for size in sizes]
        await asyncio.sleep(0.05)
        assert order == [3 * MIB, 3 * MIB, *[LARGE + 1] * 3, *[LARGE] * 4], "seven eighths, and one"
        assert room._held <= 8 * MIB
        go_on.set()
        await asyncio.gather(*tasks)
        assert room._held == 0

    run(work())


def test_4_refused() -> None:
    async def work() -> None:
        room = room_of(patience=0.05)
        async with room.holding(said(3 * MIB)), room.holding({"transfer-encoding": "chunked"}) as keep:
            with pytest.raises(Refusal) as caught:
                async with room.holding(said(2 * MIB)):
                    raise AssertionError("there is no room")
            assert (caught.value.status, caught.value.code) == (429, "too_many_bytes")
            assert caught.value.headers == {"retry-after": "1"} and "8 MiB" in caught.value.message
            keep(10)  # as long as it turned out to be
            async with room.holding(said(2 * MIB)):
                assert room._held == 5 * MIB + 10
        assert room._held == 0

    run(work())


# ---- (5) ----------------------------------------------------------------------------------------------------
def test_5_whoever_leaves() -> None:
    async def work() -> None:
        room, go_on, order = room_of(), asyncio.Event(), list[int]()
        tasks = [asyncio.create_task(held(room, 3 * MIB, order, go_on)) for _ in range(6)]
        await asyncio.sleep(0.01)
        for task in tasks[1:5]:  # one that has room, and three that wait
            task.cancel()
        await asyncio.sleep(0.01)
        assert len(order) == 3 and room._held == 6 * MIB
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert room._held == 0 and not any(room._waiting)

    run(work())


# ---- (6) ----------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, answer_bytes(200, {"keys": len(asked.body)}))

    server = Streams(answer, Rules())
    listening = bound("127.0.0.1", 0)
    async with await server.start(listening):
        yield listening.getsockname()[1]


async def asked(port: int, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer


def test_6_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(body: bytes) -> Any:
        if len(body) > LARGE:
            begun.set()
            assert go_on.wait(30)
        return json_of(body)

    monkeypatch.setattr(streams, "json_of", slow)

    async def work() -> None:
        async with serving() as port:
            large = asyncio.create_task(asked(port, b'{"a": 1}' + SPACES))
            assert await asyncio.to_thread(begun.wait, 30)
            assert (await asked(port, b"{}")).endswith(b'{"keys":0}') and not large.done()
            go_on.set()
            assert (await large).endswith(b'{"keys":1}')

    run(work())
