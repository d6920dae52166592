"""Servers of applications of ASGI, by uvicorn, under the rules of `palaestra.http.rules`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import h11

from palaestra.http.bodies import Room
from palaestra.http.rules import NOT_AWAITED, Limits, Refusal, Rules, crowded, headers_of, large_body, slow
from palaestra.http.streams import LINGER_BYTES, LINGER_S, answer_bytes

GRACE_S = 5  # seconds for replies in progress after the signal to end
NONE: Mapping[str, str] = MappingProxyType({})
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class _Left(Exception):
    """The client has closed the connection."""


class Guarded:
    """An application that gets only the requests that fit the rules, each with its whole body."""

    def __init__(self, app: Any, rules: Rules) -> None:
        self._app, self._rules, self._room = app, rules, Room(rules.limits)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Check a request and pass it on. Called by uvicorn."""
        if scope["type"] != "http":
            return
        headers = headers_of(scope["headers"])
        try:
            self._rules.check(scope["path"], scope["query_string"].decode("latin-1"), headers)
            async with self._room.holding(headers) as keep:
                body = await _body(receive, self._rules.limits)
                keep(len(body))
                await self._pass_on(body, scope, receive, send)
        except Refusal as refusal:
            with contextlib.suppress(_Left, OSError):
                if refusal.status not in NOT_AWAITED:
                    await _linger(receive)
                await send_json(send, refusal.body, refusal.status, {**refusal.headers, "connection": "close"})
        except _Left:
            return

    async def _pass_on(self, body: bytes, scope: Any, receive: Receive, send: Send) -> None:
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def rest() -> dict[str, Any]:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, rest, send)


async def _body(receive: Receive, limits: Limits) -> bytes:
    """The body. Raises: Refusal, if it is too large or too slow; _Left."""
    pieces, size = [], 0
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise _Left
                piece = event.get("body", b"")
                size += len(piece)
                if size > limits.body_bytes:
                    raise large_body(limits.body_bytes)
                pieces.append(piece)
                if not event.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise slow("body", limits.body_s) from None


async def _linger(receive: Receive) -> None:
    """Read the rest of the body, if it comes soon: then the client has sent it all and reads why it was refused."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while size < LINGER_BYTES:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise _Left
                size += len(event.get("body", b""))
                if not event.get("more_body", False):
                    return


async def send_json(send: Send, body: Any, status: int = 200, headers: Mapping[str, str] = NONE) -> None:
    """Send a whole answer."""
    await send_bytes(send, json.dumps(body).encode(), status, headers)


async def send_bytes(send: Send, content: bytes, status: int = 200, headers: Mapping[str, str] = NONE) -> None:
    """Send a whole answer whose JSON is written already."""
    named = {"content-type": "application/json", **headers, "content-length": str(len(content))}
    lines = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": content})


def uvicorn_server(app: Any, rules: Rules) -> Any:
    """A server of this application, which leaves signals alone.

    Raises: ImportError, without uvicorn.
    """
    import uvicorn

    config = uvicorn.Config(
        Guarded(app, rules),
        interface="asgi3",
        http=_protocol(rules.limits),
        ws="none",
        log_level="critical",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        h11_max_incomplete_event_size=rules.limits.head_bytes,
        timeout_keep_alive=rules.limits.idle_s,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


def _protocol(limits: Limits) -> Any:
    """The protocol of uvicorn, with a limit of connections, and of the time in which a head must arrive."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    most = limits.most_connections

    class Bounded(H11Protocol):
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                self.refuse(crowded(most))
            else:
                self.wait_for_head()

        def data_received(self, data: bytes) -> None:
            if self.late is None and self.conn.their_state is h11.IDLE:
                self.wait_for_head()
            try:
                super().data_received(data)
            except h11.LocalProtocolError:  # malformed, and an answer is already under way
                self.transport.abort()
            if self.conn.their_state is not h11.IDLE:
                self.forget_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self.forget_head()
            super().connection_lost(exc)

        def wait_for_head(self) -> None:
            self.late = self.loop.call_later(limits.head_s, lambda: self.refuse(slow("head", limits.head_s)))

        def forget_head(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

        def refuse(self, refusal: Refusal) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer_bytes(refusal.status, refusal.body, refusal.headers))
                self.transport.close()

    return Bounded


async def begin(server: Any, listening: socket.socket) -> asyncio.Future[None]:
    """Let a server of `uvicorn_server` serve. Returns its task when the server answers, or has ended."""
    serving: asyncio.Future[None] = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    return serving


def serve_until_signal(app: Any, rules: Rules, listening: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM comes. Replies in progress have a few seconds to end.

    Args:
        ready: called when the server answers.
    """
    server = uvicorn_server(app, rules)
    gc.freeze()  # else the collector visits all objects of torch and others while a body with many values is read

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end, server)
        serving = await begin(server, listening)
        if not serving.done():
            ready()
        await serving

    asyncio.run(run())


def _end(server: Any) -> None:
    """The first signal lets replies end, and the second one cuts them."""
    server.force_exit = server.should_exit
    server.should_exit = True
