"""Servers without uvicorn: one request for each connection, read by h11, under `palaestra.http.rules`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import h11

from palaestra.http.addresses import BACKLOG
from palaestra.http.bodies import Apart, Room, json_of
from palaestra.http.rules import (
    NOT_AWAITED,
    Refusal,
    Rules,
    crowded,
    headers_of,
    large_body,
    large_head,
    slow,
)

NONE: Mapping[str, str] = MappingProxyType({})
PIECE = 2**16  # bytes that are read at once
LINGER_BYTES, LINGER_S = 2**24, 1.0  # of a body that is read although the request is refused


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its method and target, its headers by names in lower case, and the JSON object of its body."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: dict[str, Any]


Answer = Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Streams:
    """A server of HTTP/1.1 that closes each connection after its answer.

    Args:
        answer: gets a request that fits the rules, and writes the answer. If it raises ConnectionError, the connection
            is cut.
        rules: for requests.
    """

    def __init__(self, answer: Answer, rules: Rules) -> None:
        self._answer, self.rules = answer, rules
        self._most = rules.limits.most_connections
        self._writers: set[asyncio.StreamWriter] = set()
        self._room, self._apart = Room(rules.limits), Apart()

    async def start(self, listening: socket.socket) -> asyncio.Server:
        """Serve on a socket of `palaestra.http.addresses.bound`."""
        return await asyncio.start_server(self._connected, sock=listening, limit=PIECE, backlog=BACKLOG)

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if len(self._writers) > self._most:
                raise crowded(self._most)
            await self._answer(await self._read(reader, writer), reader, writer)
        except Refusal as refusal:
            with contextlib.suppress(OSError):
                await self.send(writer, answer_bytes(refusal.status, refusal.body, refusal.headers))
                if refusal.status not in NOT_AWAITED:
                    writer.write_eof()
                    await _linger(reader)
        except (ConnectionError, asyncio.CancelledError):  # canceled when the event loop ends
            writer.transport.abort()
        except Exception as error:
            failed = Refusal(f"{type(error).__name__}: {error}", status=500, kind="server_error")
            writer.write(answer_bytes(failed.status, failed.body))
        finally:
            self._writers.discard(writer)
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        """Send an answer. Raises: ConnectionError, if the client does not read it in time, or leaves."""
        writer.write(content)
        try:
            async with asyncio.timeout(self.rules.limits.body_s):
                await writer.drain()
        except TimeoutError:
            raise ConnectionError("the client does not read the answer") from None

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
        """The request. Raises: Refusal; ConnectionError, if the client leaves."""
        limits = self.rules.limits
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        try:
            async with asyncio.timeout(limits.head_s):
                head = await _next(connection, reader)
        except TimeoutError:
            raise slow("head", limits.head_s) from None
        except h11.RemoteProtocolError as error:
            raise self._malformed(error) from None
        if not isinstance(head, h11.Request):
            raise ConnectionError("the client has sent no request")
        headers = headers_of(head.headers)
        target = head.target.decode("latin-1")
        path, _, query = target.partition("?")
        self.rules.check(path, query, headers)
        async with self._room.holding(headers):
            if connection.they_are_waiting_for_100_continue:
                writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            try:
                async with asyncio.timeout(limits.body_s):
                    body = await self._body(connection, reader)
            except TimeoutError:
                raise slow("body", limits.body_s) from None
            except h11.RemoteProtocolError as error:
                raise self._malformed(error) from None
            content = await self._apart.read(body or b"{}", json_of)
        if not isinstance(content, dict):
            raise Refusal("the body is no JSON object.", code="invalid_json")
        return Asked(head.method.decode("latin-1"), target, headers, content)

    async def _body(self, connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
        most, pieces, size = self.rules.limits.body_bytes, [], 0
        while isinstance(event := await _next(connection, reader), h11.Data):
            size += len(event.data)
            if size > most:
                raise large_body(most)
            pieces.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionError("the client has left")
        return b"".join(pieces)

    def _malformed(self, error: h11.RemoteProtocolError) -> Refusal:
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return large_head(self.rules.limits.head_bytes)
        return Refusal("the request is no HTTP.", code="malformed")


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    """The next part of a message. Raises: h11.RemoteProtocolError; ConnectionError, if the client leaves."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        piece = await reader.read(PIECE)
        if not piece:
            raise ConnectionError("the client has left")
        connection.receive_data(piece)
    return event


async def _linger(reader: asyncio.StreamReader) -> None:
    """Read the rest of the request, if it comes soon: then the client has sent it all and reads why it was refused."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while size < LINGER_BYTES and (piece := await reader.read(PIECE)):
                size += len(piece)


def answer_bytes(status: int, body: Any, headers: Mapping[str, str] = NONE) -> bytes:
    """A whole answer with a JSON body, after which the connection ends."""
    content = json.dumps(body, separators=(",", ":")).encode()
    named = {"Content-Type": "application/json", **headers, "Content-Length": len(content), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "-"
    return f"HTTP/1.1 {status} {phrase}\r\n{lines}\r\n".encode() + content
