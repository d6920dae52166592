"""One server of an engine: its address, what it has been sent, and how messages reach it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from palaestra.errors import PalaestraError, RecipeError, missing_extra

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds before a server that failed is asked again
CONTROL_SECONDS = 10.0  # within which a server answers whether it is up
SHOWN = 300  # characters of a server's own message
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, BUSY, BROKEN = 401, 403, 404, 429, 500


class Gone(Exception):
    """The server does not answer now, or it cannot. Another one, or the same one later, may answer.

    Attributes:
        busy: whether it has said itself that it cannot answer now.
    """

    def __init__(self, why: str, *, busy: bool = False) -> None:
        super().__init__(why)
        self.busy = busy


class Refused(Exception):
    """The server has answered with an error of this status.

    Attributes:
        status: of HTTP. said: the server's own message.
    """

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"status {status}: {said}")
        self.status, self.said = status, said


class Server:
    """One server.

    Args:
        url: its address. kind: of the engine, for messages.
        key: the secret that requests carry; empty: none. key_variable: where it comes from, for messages.

    Attributes:
        label: of the base weights that it was sent; "": none, or those that it has loaded itself.
        adapters: policy → name of the adapter that it was sent.
        running: name of an adapter, or "" for the base → requests under way.
        base: the name under which it serves its base model. length: most ids of a request, if it says so.
        connected: whether it has answered since it was last lost.
        joining: the hand-over that is under way, or the last one.
        epoch: how often it has failed. losses: how often it has lost what it was sent.
        sleeping: whether it has freed its memory.
        chosen: when it was last chosen for a request, as a count.
        scaled: whether its log-probabilities are of the distribution that it samples from; None: not known.
        seedless: whether it cannot answer requests with seeds.
    """

    def __init__(self, url: str, *, kind: str, key: str, key_variable: str) -> None:
        self.url, self._kind, self._key, self._key_variable = url, kind, key, key_variable
        self.threads = ThreadPoolExecutor(1, thread_name_prefix=f"{kind}-server")  # one control message at a time
        self.label, self.base = "", ""
        self.length: int | None = None
        self.adapters: dict[str, str] = {}
        self.running: Counter[str] = Counter()
        self.connected = self.sleeping = self.seedless = False
        self.scaled: bool | None = None
        self.joining: Future[None] | None = None
        self.failures, self.epoch, self.losses = 0, 0, 0  # `failures`: in a row
        self.chosen = 0
        self.lost = False  # whether the user was told that it does not answer
        self._again, self._checked, self._healthy = 0.0, 0.0, True
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._checking: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    # ---- its state ------------------------------------------------------------------------------------------
    @property
    def usable(self) -> bool:
        """Whether a request may be sent now: the server has not just failed."""
        return time.monotonic() >= self._again

    @property
    def pause(self) -> float:
        """Seconds until it may be asked again."""
        return max(0.0, self._again - time.monotonic())

    def fail(self, epoch: int) -> None:
        """Note that it does not answer: it has lost what it was sent, and is asked again after a pause.

        Args:
            epoch: the attribute, when the message was sent. A failure that was noted meanwhile counts once.
        """
        if epoch != self.epoch:
            return
        self.epoch += 1
        self.forget()
        self.connected = self.sleeping = False
        self.scaled = None
        self._again = time.monotonic() + min(LONGEST_PAUSE, FIRST_PAUSE * 2**self.failures)
        self.failures += 1

    def answered(self) -> None:
        """Note that it answers."""
        self.failures, self._again = 0, 0.0
        if self.lost:
            self.lost = False
            self.tell(f"{self.url} answers.")

    def forget(self, losses: int | None = None) -> None:
        """Note that what it was sent is not there any more.

        Args:
            losses: the attribute, when the message was sent. A loss that was noted meanwhile counts once: otherwise an
                answer that comes late would let the weights be sent again, and interrupt all responses.
        """
        if losses not in (None, self.losses):
            return
        self.losses += 1
        self.label = ""
        self.adapters.clear()

    def waits(self, why: str, seconds: float) -> None:
        """Tell the user once that the run waits for it."""
        if not self.lost:
            self.lost = True
            self.tell(f"waiting for {self.url}, for up to {seconds:g} s ({why}).")

    def tell(self, line: str) -> None:
        """Show the user a line."""
        print(f"engine {self._kind}: {line}", file=sys.stderr, flush=True)

    # ---- messages -------------------------------------------------------------------------------------------
    async def ask(self, path: str, body: Mapping[str, Any], *, in_flight: int, seconds: float) -> Any:
        """Send a request for tokens, from an event loop. Raises: Gone; Refused; PalaestraError."""
        http, loop = package(), asyncio.get_running_loop()
        if loop not in self._clients:
            # Connections are not kept, since they would outlive the event loop of an iteration.
            limits = http.Limits(max_connections=in_flight, max_keepalive_connections=0)
            timeout = http.Timeout(seconds, connect=CONTROL_SECONDS, pool=None)
            self._clients[loop] = http.AsyncClient(
                limits=limits, timeout=timeout, trust_env=False, verify=_verify(self.url), headers=self._headers()
            )
        try:
            answer = await self._clients[loop].post(f"{self.url}{path}", json=body)
        except http.HTTPError as error:
            raise Gone(_said_by(error)) from error
        return self._content(answer)

    def send(
        self, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = CONTROL_SECONDS, get: bool = False
    ) -> Any:
        """Send a control message and wait for the answer. Raises: Gone; Refused; PalaestraError."""
        http = package()
        options: dict[str, Any] = {} if get else {"json": body or {}}
        try:
            with http.Client(
                timeout=http.Timeout(seconds, connect=CONTROL_SECONDS),
                trust_env=False,
                verify=_verify(self.url),
                headers=self._headers(),
            ) as client:
                answer = client.request("GET" if get else "POST", f"{self.url}{path}", **options)
        except http.HTTPError as error:
            raise Gone(_said_by(error)) from error
        return self._content(answer)

    async def healthy(self, path: str, *, every: float, seconds: float) -> bool:
        """Whether it answers within `seconds` that it is up. It is asked at most once in `every` seconds."""
        loop = asyncio.get_running_loop()
        async with self._checking.setdefault(loop, asyncio.Lock()):
            if time.monotonic() - self._checked >= every:
                try:
                    await asyncio.to_thread(self.send, path, get=True, seconds=seconds)
                    self._healthy = True
                except (Gone, Refused):
                    self._healthy = False
                self._checked = time.monotonic()
            return self._healthy

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _content(self, answer: Any) -> Any:
        status = int(answer.status_code)
        if status in (UNAUTHORIZED, FORBIDDEN):
            raise PalaestraError(
                where=f"engine {self._kind}, {self.url}",
                what=f"the server asks for {'another' if self._key else 'a'} key.",
                remedy=f"Set the environment variable {self._key_variable} to the key with which it was started.",
            )
        text = answer.text
        if status >= BROKEN or status == BUSY:
            said = self._without_key(_message_in(text))
            raise Refused(status, said) if status == BROKEN else Gone(f"status {status}: {said}", busy=True)
        if status >= 400:
            raise Refused(status, self._without_key(_message_in(text)))
        with contextlib.suppress(ValueError):
            return json.loads(text) if text else {}
        return {"text": text}

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def package() -> Any:
    """The package httpx2. Raises: MissingExtra, if it is not installed."""
    try:
        return importlib.import_module("httpx2")
    except ImportError as error:
        raise missing_extra("httpx2", extra="serve", needed_for="an engine over HTTP") from error


def address(url: str, *, where: str) -> str:
    """A server's address without the last slash and without `/v1`.

    Raises: RecipeError, if it is no address, or if it holds a password.
    """
    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname or place.query or place.fragment:
        raise RecipeError(where=f"{where}.url", what=f"`{url}` is not like http://127.0.0.1:8000.")
    if place.username or place.password:
        raise RecipeError(
            where=f"{where}.url",
            what="the address holds a password, and a recipe never contains secrets.",
            remedy="Set the environment variable that the option `key` names.",
        )
    return url.rstrip("/").removesuffix("/v1")


def _verify(url: str) -> Any:
    """The certificates that are trusted. Reading them takes time, which an address without TLS does not need."""
    return ssl.create_default_context() if url.startswith("https") else False


def _said_by(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _message_in(text: str) -> str:
    """The message in an error of vLLM or SGLang, which write it in different places."""
    said: Any = text
    with contextlib.suppress(ValueError):
        said = json.loads(text)
    for name in ("error", "message", "detail", "error_message"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return " ".join(str(said).split())[:SHOWN].rstrip(".")
