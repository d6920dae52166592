"""Every server that Palaestra starts, each ready for the battery of `test_battery.py`.

A subject is listed by the module that opens its socket. `tests/house/test_servers.py` finds a module that is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palaestra.engines.serve import EngineServer, streams
from palaestra.gateway.app import Single, make_app
from palaestra.gateway.gate import Gate
from palaestra.gateway.limits import ServerLimits
from palaestra.gateway.loops import LoopThread
from palaestra.gateway.server import rules_of
from palaestra.http.addresses import LOOPBACK, bound
from palaestra.http.asgi import begin, uvicorn_server
from palaestra.testing.stand_in import BASE, StandIn

SECRET = "a-secret-of-the-battery"


@dataclass(slots=True)
class Place:
    """A server that runs, and a request that it answers with status 200.

    Attributes:
        headers: that the request needs. secret: the header that carries the secret; "" if the server has none.
    """

    port: int
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    secret: str = ""


class Names:
    """A backend that only says what it serves."""

    def names(self) -> list[str]:
        return ["tiny"]


@contextlib.contextmanager
def gateway(folder: Path, secret: str) -> Iterator[Place]:
    """The server of `palaestra serve`."""
    limits, thread = ServerLimits(), LoopThread("battery")
    listening = bound(LOOPBACK, 0, secret=secret)
    app = make_app(Single(Names()), limits=limits)  # type: ignore[arg-type]
    server = uvicorn_server(app, rules_of(limits, secret=secret))
    serving = asyncio.run_coroutine_threadsafe(begin(server, listening), thread.loop)
    ended = serving.result(20)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        yield Place(
            listening.getsockname()[1], "GET", "/v1/models", headers=headers, secret="authorization" * bool(secret)
        )
    finally:
        server.should_exit = True
        asyncio.run_coroutine_threadsafe(asyncio.wait([ended]), thread.loop).result(20)
        thread.stop()
        listening.close()


@contextlib.contextmanager
def gate(folder: Path, secret: str) -> Iterator[Place]:
    """The server beside a run. Each episode has its own secret, in its address."""
    made = Gate()
    with made.episode(Names()) as url:  # type: ignore[arg-type]
        address, _, key = url.rpartition("/s/")
        port = int(address.rpartition(":")[2])
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port)):
                break
            time.sleep(0.01)
        yield Place(port, "GET", f"/s/{key}/v1/models")


@contextlib.contextmanager
def engine(folder: Path, secret: str) -> Iterator[Place]:
    """The server of the engine process."""
    thread, listening = LoopThread("battery"), bound(LOOPBACK, 0, secret=secret)
    server = streams(EngineServer(folder, options={}), secret)
    serving = asyncio.run_coroutine_threadsafe(server.start(listening), thread.loop).result(20)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        yield Place(listening.getsockname()[1], "POST", "/state", b"{}", headers, "authorization" * bool(secret))
    finally:
        thread.loop.call_soon_threadsafe(serving.close)
        thread.stop()


class Light(StandIn):
    """A stand-in without a model."""

    def _load(self) -> None:
        self._models = {BASE: None}
        self.adapters: dict[str, str] = {}
        self._frozen = False


@contextlib.contextmanager
def stand_in(folder: Path, secret: str) -> Iterator[Place]:
    """The stand-in for servers that generate."""
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    with Light("vllm", folder, key=secret) as made:
        while made._starting:
            time.sleep(0.01)
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, made.port)):
                break
            time.sleep(0.01)
        yield Place(made.port, "GET", "/health", headers=headers, secret="authorization" * bool(secret))


@contextlib.contextmanager
def endpoint(folder: Path, secret: str) -> Iterator[Place]:
    """The model's address for verifiers. It always has a secret, which it makes itself."""
    from palaestra.envs.adapters.verifiers.endpoint import PATH, TOKEN, Endpoint

    thread = LoopThread("battery")

    def asked(session: str, body: Any) -> asyncio.Future[dict[str, Any]]:
        answer: asyncio.Future[dict[str, Any]] = thread.loop.create_future()
        answer.set_result({"content": "yes"})
        return answer

    made = Endpoint(asked)
    asyncio.run_coroutine_threadsafe(made.start(), thread.loop).result(20)
    try:
        port = int(made.url.removesuffix("/v1").rpartition(":")[2])
        yield Place(port, "POST", PATH, b'{"messages": []}', dict(made.headers), TOKEN.lower())
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), thread.loop).result(20)
        thread.stop()


Subject = Callable[[Path, str], contextlib.AbstractContextManager[Place]]
SUBJECTS: dict[str, Subject] = {
    "palaestra/commands/serve.py": gateway,
    "palaestra/gateway/gate.py": gate,
    "palaestra/engines/serve.py": engine,
    "palaestra/testing/stand_in.py": stand_in,
    "palaestra/envs/adapters/verifiers/endpoint.py": endpoint,
}
