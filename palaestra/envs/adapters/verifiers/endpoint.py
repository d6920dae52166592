"""The address of the model for verifiers: a server of chat completions on the loopback, which asks agents.

It answers only requests with the token that it made itself. verifiers sends it with each request of its episodes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

MODEL = "policy"
SESSION = "X-Session-ID"  # verifiers sends the id of the trace under this name
TOKEN = "X-Palaestra-Token"
LOOPBACK = "127.0.0.1"
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
        self._runner: Any = None
        self._started = asyncio.Lock()
        self.url = ""
        self.headers = {TOKEN: secrets.token_urlsafe(24)}

    async def start(self) -> None:
        """Listen, if it does not yet."""
        from aiohttp import web

        async with self._started:
            if self._runner is not None:
                return
            _without_proxy()
            app = web.Application(client_max_size=MOST_BYTES)
            app.router.add_post("/v1/chat/completions", self._complete)
            self._runner = web.AppRunner(app, access_log=None)
            await self._runner.setup()
            await web.TCPSite(self._runner, LOOPBACK, 0).start()
            self.url = f"http://{LOOPBACK}:{self._runner.addresses[0][1]}/v1"

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web

        if not secrets.compare_digest(request.headers.get(TOKEN, ""), self.headers[TOKEN]):
            return web.json_response({"error": {"message": "the token is missing or wrong"}}, status=401)
        answer = self._asked(request.headers.get(SESSION, ""), await request.json())
        if answer is None:
            return web.json_response({"error": {"message": "no episode is played in this session"}}, status=404)
        try:
            message = await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            return web.json_response({"error": {"message": "the episode was abandoned"}}, status=503)
        return web.json_response(_completion(message))


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
