"""A server of a tiny model on this machine, whose engine may answer from a script."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai

from palaestra.data import Action, FinishReason
from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines import InProcessEngine
from palaestra.gateway.app import Single, make_app
from palaestra.gateway.limits import ServerLimits
from palaestra.gateway.loops import LoopThread
from palaestra.gateway.models import ServedModel, ServedModels
from palaestra.gateway.server import rules_of
from palaestra.http.addresses import address_of, bound
from palaestra.http.asgi import uvicorn_server

Say = Callable[[str], str | np.ndarray]
NONE = np.zeros(0, np.int32)


class Scripted(Engine):
    """Answers by a function of the whole text that was read, as many ids at once as a request asks for.

    Attributes:
        read: session → all ids that it was asked to read or that it answered. closed: sessions in order of their end.
        seconds: that each request takes. Set `gate` to an event to hold all requests until it is set.
    """

    def __init__(self, policy: Any, say: Say, *, seconds: float = 0.0) -> None:
        self.policy, self.say, self.seconds = policy, say, seconds
        self.gate: threading.Event | None = None
        self.slow = ""  # a request whose text has it, and not "again", takes a second
        self.read: dict[Any, list[np.ndarray]] = defaultdict(list)
        self.left: dict[Any, np.ndarray] = {}
        self.closed: list[Any] = []
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Response:
        self.requests.append(request)
        await asyncio.sleep(self.seconds)
        while self.gate is not None and not self.gate.is_set():
            await asyncio.sleep(0.01)
        session = request.session
        self.read[session].append(request.prompt)
        text = self.policy.tokenizer.decode(np.concatenate(self.read[session]).tolist())
        if self.slow and self.slow in text and "again" not in text:
            await asyncio.sleep(1.0)
        if not len(self.left.get(session, NONE)):
            said = self.say(text)
            ids = self.policy.renderer.action(said) if isinstance(said, str) else said
            self.left[session] = ids
        given, self.left[session] = np.split(self.left[session], [request.max_tokens])
        finish = FinishReason.LENGTH if len(self.left[session]) else FinishReason.STOP
        self.read[session].append(given)
        return Response(action=Action(tokens=given, logprobs=np.full(len(given), -0.5, np.float32), finish=finish))

    def close(self, session: Any) -> None:
        self.left.pop(session, None)
        self.closed.append(session)

    def context(self, policy: str) -> int:
        return 32_768


def model_of(policy: Any, engine: Engine, **options: Any) -> ServedModel:
    return ServedModel(
        **{
            "policy": policy.name,
            "engine": engine,
            "renderer": policy.renderer,
            "tokenizer": policy.tokenizer,
            "context": min(policy.limit, engine.context(policy.name)),
            "usual_most": 400,
        }
        | options
    )


@contextlib.contextmanager
def serving(
    model: ServedModel, *, token: str = "", limits: ServerLimits | None = None, name: str = "tiny"
) -> Iterator[str]:
    """A context with the address of a server for this model."""
    backend, thread = ServedModels({name: model}), LoopThread("served")
    listening = bound("127.0.0.1", 0)
    allowed = limits or ServerLimits()
    server = uvicorn_server(make_app(Single(backend), limits=allowed), rules_of(allowed, secret=token))
    done = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listening]), thread.loop)
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        done.result(10)
        thread.stop()
        backend.close()
        listening.close()


def client(address: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0, "timeout": 60} | options)


def engine_of(policy: Any) -> InProcessEngine:
    return InProcessEngine(models={policy.name: policy.model}, memory="64MB")


def collected(stream: Any) -> dict[str, Any]:
    """What the chunks of a stream say together, for its first choice."""
    found: dict[str, Any] = {"text": "", "thinking": "", "calls": [], "finish": None, "usage": None, "pieces": 0}
    for chunk in stream:
        if chunk.usage is not None:
            found["usage"] = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            found["text"] += delta.content or ""
            found["thinking"] += getattr(delta, "reasoning_content", None) or ""
            found["calls"] += [(c.function.name, c.function.arguments) for c in delta.tool_calls or ()]
            found["finish"] = choice.finish_reason or found["finish"]
            found["pieces"] += bool(delta.content)
    return found
