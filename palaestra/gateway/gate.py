"""The server beside a run: one for all its episodes, on this machine only, with a secret key in each address."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from palaestra.gateway.app import Backends, make_app
from palaestra.gateway.chats import EpisodeChats
from palaestra.gateway.limits import ServerLimits
from palaestra.gateway.loops import LoopThread
from palaestra.gateway.server import rules_of
from palaestra.http.addresses import LOOPBACK, address_of, bound
from palaestra.http.asgi import begin, uvicorn_server
from palaestra.http.rules import MIB, Refusal

IDLE_S = 5.0  # without an episode for so long, the server ends
TICK_S = 0.2
LIMITS = ServerLimits(running=4096, waiting=4096, held_bytes=4096 * MIB, seconds=3600.0)


class Gate(Backends):
    """Starts the server with the first episode, and ends it when there has been none for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chats: dict[str, EpisodeChats] = {}
        self._used = 0.0
        self._process = os.getpid()
        self._url: str | None = None  # of the server that runs

    @contextmanager
    def episode(self, chats: EpisodeChats) -> Iterator[str]:
        """A context in which the address that it gives leads to these chats."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            if self._url is None or self._process != os.getpid():  # a process that was forked has no thread
                self._process, self._url = os.getpid(), self._start()
            self._chats[key] = chats
            url = self._url
        try:
            yield f"{url}/s/{key}"
        finally:
            with self._lock:
                del self._chats[key]
                self._used = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether the server runs."""
        return self._url is not None

    def backend(self, key: str) -> EpisodeChats:
        """The chats of an episode. Raises: Refusal, if there is none of this key."""
        found = self._chats.get(key)
        if found is None:
            raise Refusal("there is no episode at this address, or it is over.", status=404, code="episode_over")
        return found

    def world(self, key: str) -> EpisodeChats:
        """The same, for acts in the environment."""
        return self.backend(key)

    def _start(self) -> str:
        listening = bound(LOOPBACK, 0)
        server = uvicorn_server(make_app(self, limits=LIMITS, prefix="/s/{key}"), rules_of(LIMITS))
        thread = LoopThread("palaestra gateway")
        asyncio.run_coroutine_threadsafe(self._run(server, listening), thread.loop)
        return address_of(listening)

    async def _run(self, server: Any, listening: Any) -> None:
        serving = await begin(server, listening)
        while not self._idle():
            await asyncio.sleep(TICK_S)
        server.should_exit = True
        await serving
        listening.close()
        asyncio.get_running_loop().stop()

    def _idle(self) -> bool:
        """Whether the server is to end. Afterwards, the next episode starts another one."""
        with self._lock:
            if self._chats or time.monotonic() - self._used < IDLE_S:
                return False
            self._url = None
            return True


GATE = Gate()
