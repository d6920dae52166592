"""The application of a server: addresses, the secret of clients, limits, streams, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from palaestra.engines.heap import give_back
from palaestra.gateway.backend import Backend, Event
from palaestra.gateway.bodies import (
    ChatForm,
    CompletionForm,
    Form,
    as_json,
    error_event,
    model_of,
    models_of,
)
from palaestra.gateway.faults import failed
from palaestra.gateway.limits import Places, ServerLimits, over_time
from palaestra.gateway.other_apis import no_address
from palaestra.gateway.replies import Delta, Reply
from palaestra.gateway.requests import MOST_CHOICES, chat_body, completion_body
from palaestra.http.asgi import NONE, Receive, Send, send_bytes
from palaestra.http.bodies import LARGE, Apart, json_of
from palaestra.http.rules import Refusal


class World(Protocol):
    """An episode's environment, for agents that act in it by HTTP."""

    async def act(self, given: Any) -> dict[str, Any]:
        """What the environment shows after an act. Raises: Refusal."""
        ...


class Backends(Protocol):
    """Finds what answers a request."""

    def backend(self, key: str) -> Backend:
        """The backend of the key in an address; "" where the addresses have none. Raises: Refusal."""
        ...

    def world(self, key: str) -> World:
        """The environment of this key. Raises: Refusal, where there is none."""
        ...


class Single(Backends):
    """One backend for all requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def backend(self, key: str) -> Backend:
        """The backend."""
        return self._backend

    def world(self, key: str) -> World:
        """Raises: Refusal."""
        raise no_address(ACT)


def make_app(backends: Backends, *, limits: ServerLimits, prefix: str = "") -> Any:
    """The application, for `palaestra.http.asgi`, which checks secrets and bodies.

    Args:
        prefix: of all addresses; `/s/{key}` where they have a key.

    Raises: ImportError, without fastapi.
    """
    from fastapi import FastAPI, Request

    app = FastAPI(title="Palaestra", docs_url=None, redoc_url=None, openapi_url=None)
    gateway = _Gateway(backends, limits)

    def answering(path: str) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            return _Answer(gateway, request, path)

        return answer

    for path, method in ADDRESSES.items():
        app.add_route(prefix + path, answering(path), methods=[method])

    async def unknown(request: Request, error: Exception) -> Any:
        return _Answer(gateway, request, "", no_address(request.url.path))

    async def unsuited(request: Request, error: Exception) -> Any:
        method = next((method for path, method in ADDRESSES.items() if request.url.path.endswith(path)), "GET")
        what = f"{request.method} is not allowed at {request.url.path[:200]}. Use {method}."
        return _Answer(gateway, request, "", Refusal(what, status=405))

    app.add_exception_handler(404, unknown)
    app.add_exception_handler(405, unsuited)
    return app


HEALTH, MODELS, MODEL = "/health", "/v1/models", "/v1/models/{name:path}"
CHAT, COMPLETIONS, ACT = "/v1/chat/completions", "/v1/completions", "/act"
ADDRESSES = {HEALTH: "GET", MODELS: "GET", MODEL: "GET", CHAT: "POST", COMPLETIONS: "POST", ACT: "POST"}

SOON_S = 1.0


class _Gateway:
    """Answers requests."""

    def __init__(self, backends: Backends, limits: ServerLimits) -> None:
        self.backends, self.limits = backends, limits
        self.places, self.apart = Places(limits), Apart()
        self._giving_back: asyncio.TimerHandle | None = None

    def give_back_soon(self) -> None:
        """Give the memory of large bodies back, once for all that come together."""
        if self._giving_back is None:
            self._giving_back = asyncio.get_running_loop().call_later(SOON_S, self._give_back)

    def _give_back(self) -> None:
        self._giving_back = None
        asyncio.get_running_loop().run_in_executor(None, give_back)


class _Answer:
    """The answer to one request, as an application of ASGI. It ends when the client leaves."""

    def __init__(self, gateway: _Gateway, request: Any, path: str, refusal: Refusal | None = None) -> None:
        self._gateway, self._request, self._path, self._refusal = gateway, request, path, refusal
        self._begun = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer. Called by Starlette."""
        try:
            if self._refusal is not None:
                raise self._refusal
            await self._answer(receive, send)
        except Refusal as refusal:
            await self._refuse(refusal, send)
        except Exception as error:
            await self._refuse(failed(f"{type(error).__name__}: {error}"), send)

    async def _refuse(self, refusal: Refusal, send: Send) -> None:
        with contextlib.suppress(OSError):
            if self._begun:
                await send({"type": "http.response.body", "body": error_event(refusal)})
            else:
                await _send_whole(send, refusal.body, refusal.status, refusal.headers)

    async def _answer(self, receive: Receive, send: Send) -> None:
        request, gateway, path = self._request, self._gateway, self._path
        if path == HEALTH:
            await _send_whole(send, {"status": "ok", **_load(gateway.places)})
            return
        key = request.path_params.get("key", "")
        backend = gateway.backends.backend(key)
        if path == MODELS:
            await _send_whole(send, models_of(backend.names()))
        elif path == MODEL:
            name = request.path_params["name"]
            if name not in backend.names():
                raise Refusal(f"there is no model {name!r}.", status=404, code="model_not_found")
            await _send_whole(send, model_of(name))
        else:
            content = await request.body()
            try:
                await _until_gone(receive, self._work(key, backend, content, send))
            finally:
                if len(content) > LARGE:
                    gateway.give_back_soon()

    async def _work(self, key: str, backend: Backend, content: bytes, send: Send) -> None:
        seconds = self._gateway.limits.seconds
        clock = asyncio.timeout(seconds)
        try:
            async with clock, self._gateway.places.place():
                asked = await self._gateway.apart.read(content, _asked, self._path, backend)
                if self._path == ACT:
                    await _send_whole(send, await self._gateway.backends.world(key).act(asked))
                    return
                form: Form
                streams = asked.sampled.stream
                if self._path == CHAT:
                    form = ChatForm(_name(asked, backend), logprobs=asked.logprobs, usage=_usage(asked))
                    events = backend.chat(asked)
                else:
                    logprobs = asked.logprobs is not None  # 0 asks for those of the tokens that are drawn
                    form = CompletionForm(_name(asked, backend), logprobs=logprobs, usage=_usage(asked))
                    events = backend.complete(asked)
                async with contextlib.aclosing(events):  # type: ignore[type-var]
                    await (self._stream(form, events, send) if streams else _whole(form, events, send))
        except TimeoutError:
            if not clock.expired():
                raise
            raise over_time(seconds) from None

    async def _stream(self, form: Form, events: AsyncIterator[Event], send: Send) -> None:
        sent: dict[int, Delta] = {}
        replies: dict[int, Reply] = {}
        async for number, found in events:
            before = sent.get(number, Delta())
            if isinstance(found, Reply):
                replies[number] = found
                delta = _rest(found, before)
            else:
                delta = found
                sent[number] = Delta(before.thinking + found.thinking, before.text + found.text)
            for chunk in form.chunks(number, delta, replies.get(number)):
                await self._send_chunk(send, chunk)
        for chunk in form.last([replies[number] for number in sorted(replies)]):
            await self._send_chunk(send, chunk)
        await send({"type": "http.response.body", "body": b""})

    async def _send_chunk(self, send: Send, chunk: bytes) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _asked(path: str, backend: Backend, content: bytes) -> Any:
    """What a body asks: of the environment, as JSON; of the model, checked. Raises: Refusal."""
    if path == ACT:
        return json_of(content)
    sizes = backend.sizes()
    sizes.refuse_bytes(len(content), prompts=1 if path == CHAT else MOST_CHOICES)
    given = json_of(content)
    if path != CHAT:
        return completion_body(given)
    sizes.refuse_chat(given)
    return chat_body(given)


async def _whole(form: Form, events: AsyncIterator[Event], send: Send) -> None:
    replies = {number: found async for number, found in events if isinstance(found, Reply)}
    await _send_whole(send, form.whole([replies[number] for number in sorted(replies)]))


def _rest(reply: Reply, sent: Delta) -> Delta:
    """What a reply has beyond the deltas. Raises: Refusal, if it differs from them."""
    if not reply.thinking.startswith(sent.thinking) or not reply.text.startswith(sent.text):
        raise failed("the stream is not the beginning of the whole reply. Ask without `stream`, and report the model.")
    return Delta(reply.thinking[len(sent.thinking) :], reply.text[len(sent.text) :])


async def _until_gone(receive: Receive, work: Any) -> None:
    """Do the work, or cancel it when the client leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(
    send: Send, body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] = NONE
) -> None:
    await send_bytes(send, as_json(body), status, headers)


def _load(places: Places) -> dict[str, int]:
    return {"running": places.running, "waiting": places.waiting}


def _name(body: Any, backend: Backend) -> str:
    """The name of the model in an answer."""
    return str(body.sampled.model if body.sampled.model is not None else next(iter(backend.names()), ""))


def _usage(body: Any) -> bool:
    """Whether a stream ends with its usage."""
    return bool(body.sampled.stream_options.include_usage)
