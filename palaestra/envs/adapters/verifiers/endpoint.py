"""The address of the model for verifiers: a server of chat completions on the loopback, which asks agents.

It answers only requests with the token that it made itself. verifiers sends it with each request of its episodes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.http.addresses import LOOPBACK, address_of, bound
from palaestra.http.asgi import Receive, Send, begin, send_json, uvicorn_server
from palaestra.http.bodies import Apart, json_of
from palaestra.http.rules import Limits, Refusal, Rules

MODEL = "policy"
SESSION = "X-Session-ID"  # verifiers sends the id of the trace under this name
TOKEN = "X-Palaestra-Token"
PATH = "/v1/chat/completions"
MOST_BYTES = 1 << 30  # of a request; verifiers itself takes as much
Asked = Callable[[str, Mapping[str, Any]], "asyncio.Future[dict[str, Any]] | None"]


class Endpoint:
    """The server. It runs in the event loop in which `start` is called.

    Args:
        asked: gets the id of a session and the body of a request, and returns a future for the assistant's message.

    Attributes:
        url: its address, after `start`. headers: what a client must send.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._server: Any = None
        self._serving: asyncio.Future[None] | None = None
        self._started, self._apart = asyncio.Lock(), Apart()
        self.url = ""
        self.headers = {TOKEN: secrets.token_urlsafe(24)}

    async def start(self) -> None:
        """Listen, if it does not yet."""
        async with self._started:
            if self._serving is not None:
                return
            _without_proxy()
            self._listening = bound(LOOPBACK, 0)
            rules = Rules(secret=self.headers[TOKEN], header=TOKEN.lower(), limits=Limits(body_bytes=MOST_BYTES))
            self._server = uvicorn_server(self._answer, rules)
            self._serving = await begin(self._server, self._listening)
            self.url = f"{address_of(self._listening)}/v1"

    async def stop(self) -> None:
        """End the server. Requests in progress have a few seconds to end."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._listening.close()
            self._serving = None

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request. Called by uvicorn."""
        try:
            if (scope["method"], scope["path"]) != ("POST", PATH):
                raise Refusal("there is no such address.", status=404)
            body = await self._apart.read((await receive())["body"], json_of)
            session = dict(scope["headers"]).get(SESSION.lower().encode(), b"").decode("latin-1")
            await send_json(send, _completion(await self._message(session, body)))
        except Refusal as refusal:
            await send_json(send, refusal.body, refusal.status)

    async def _message(self, session: str, body: Any) -> Mapping[str, Any]:
        """The assistant's message. Raises: Refusal."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise Refusal("the body has no list of messages.", param="messages")
        answer = self._asked(session, body)
        if answer is None:
            raise Refusal("no episode is played in this session.", status=404)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            raise Refusal("the episode was abandoned.", status=503) from None


def _completion(message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion with this message, in the form of OpenAI's service."""
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        "message": {"role": "assistant", **message},
    }
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _without_proxy() -> None:
    """Make clients of this process reach the loopback directly, if a proxy is set."""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = os.environ.get(name, "")
        if any(os.environ.get(proxy) for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
            os.environ[name] = hosts if LOOPBACK in hosts else ",".join(filter(None, (hosts, LOOPBACK)))
