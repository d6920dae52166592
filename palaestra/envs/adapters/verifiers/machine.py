"""Runs episodes of verifiers (version 0.4) so that each call of a model becomes a turn of an agent.

All of verifiers runs in one event loop in its own thread, because its servers live longer than the event loops of
rollouts. The program of a seat is the chat loop `Chat` below. Its requests go through verifiers' interception, which
keeps the trace, to the client `Handover` below. The client passes each request on as an `Ask` and waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import threading
import types
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from palaestra.errors import MissingExtra, missing_extra

PLACE = "environment verifiers"
HARNESS = "palaestra_chat"  # verifiers finds harnesses by the names of modules
MODEL = "policy"
T = TypeVar("T")


@dataclass(slots=True)
class Ask:
    """A call of a seat's model: the conversation so far, the tools that it may call, and a future for the answer."""

    agent: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    answer: asyncio.Future[dict[str, Any]]


class Machine:
    """The thread with verifiers' event loop, and the traces of all running episodes."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.seats: dict[str, tuple[Any, Play]] = {}  # trace id → the trace and its episode
        self.held: set[asyncio.Task[None]] = set()  # keeps tasks alive, which an event loop does not
        threading.Thread(target=self.loop.run_forever, daemon=True, name="palaestra-verifiers").start()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in verifiers' event loop, and wait for its result in the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


@functools.cache
def machine() -> Machine:
    """The machine of this process."""
    return Machine()


class Play:
    """One environment of verifiers, which stays open between episodes, and its running episode."""

    def __init__(self, env: Any) -> None:
        self._env, self._episode = env, None
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._opened: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._open: Ask | None = None
        self._traces: list[str] = []

    async def begin(self, task: Any) -> Any:
        """Start an episode. Returns its first Ask, the finished Episode of verifiers, or an error."""
        await self.abandon()
        if self._opened is None:
            ready = asyncio.get_running_loop().create_future()
            self._opened = asyncio.ensure_future(self._hold(ready))
            machine().held.add(self._opened)
            self._opened.add_done_callback(machine().held.discard)
            await ready
        self._events = asyncio.Queue()
        self._episode = asyncio.ensure_future(self._run(task, self._events))
        return await self._next()

    async def reply(self, message: Mapping[str, Any]) -> Any:
        """Answer the open Ask with an assistant's message. Returns the next event, as `begin` does."""
        assert self._open is not None
        self._open.answer.set_result(dict(message))
        return await self._next()

    async def abandon(self) -> None:
        """Cancel the running episode, if there is one."""
        running, self._episode = self._episode, None
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait({running})
        for trace in self._traces:
            machine().seats.pop(trace, None)
        self._traces, self._open = [], None

    async def close(self) -> None:
        await self.abandon()
        if self._opened is not None:
            self._closing.set()
            await asyncio.wait({self._opened})
            self._opened, self._closing = None, asyncio.Event()

    # ---- inside -------------------------------------------------------------------------------------------
    async def _hold(self, ready: asyncio.Future[None]) -> None:
        """Keep the environment's servers open until `close`. This one task both opens and closes them, as it must."""
        try:
            async with self._env.serving():
                clients = getattr(self._env._interception, "clients", None)
                if clients is None:
                    raise _unknown("its interception has no `clients`")
                clients[_endpoint().model_dump_json()] = _client()()
                ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    async def _run(self, task: Any, events: asyncio.Queue[Any]) -> None:
        vf = package()
        context = vf.ModelContext(model=MODEL, client=_endpoint())
        try:
            events.put_nowait(await self._env.run_episode(task, context, on_trace=self._minted))
        except Exception as error:
            events.put_nowait(error)

    def _minted(self, trace: Any) -> None:
        machine().seats[trace.id] = (trace, self)
        self._traces.append(trace.id)

    async def _next(self) -> Any:
        event = await self._events.get()
        self._open = event if isinstance(event, Ask) else None
        return event

    def ask(self, ask: Ask) -> None:
        self._events.put_nowait(ask)


# ---- the package, with our harness and our client -------------------------------------------------------------
@functools.cache
def package() -> Any:
    """The module verifiers.v1. Our harness is made importable for it. Raises: MissingExtra."""
    try:
        import verifiers.v1 as vf
    except ModuleNotFoundError:
        raise missing_extra("verifiers", extra="adapters", needed_for=PLACE) from None
    module = types.ModuleType(HARNESS)
    module.__dict__.update(Chat=_harness(vf), __all__=["Chat"])
    sys.modules[HARNESS] = module
    return vf


@functools.cache
def _endpoint() -> Any:
    """The address of the model. Nothing is there: `Handover` answers the calls."""
    return package().EvalClientConfig(base_url="http://palaestra.invalid/v1", api_key_var="PALAESTRA")


@functools.cache
def _client() -> Any:
    vf = package()

    class Handover(vf.Client):  # type: ignore[misc, name-defined]
        """Answers a call of the model with what an agent says."""

        async def get_response(
            self,
            dialect: Any,
            body: dict[str, Any],
            sampling: Any,
            session_id: str | None = None,
            turn: Any = None,
            headers: Any = None,
        ) -> Any:
            trace, play = machine().seats[str(session_id)]
            answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            play.ask(Ask(trace.agent.name or "agent", list(body["messages"]), list(body.get("tools") or ()), answer))
            message = await answer
            raw = {
                "id": f"chatcmpl-{trace.id}-{trace.num_turns}",
                "object": "chat.completion",
                "created": 0,
                "model": MODEL,
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                        "message": {"role": "assistant", **message},
                    }
                ],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
            response = dialect.parse_response(dialect.validate_response(raw))
            response.raw = raw
            return response

    return Handover


def _harness(vf: Any) -> Any:
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

    class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc, name-defined]
        """A chat loop in this process. It calls the model until an answer has no call of a tool."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
        ) -> Any:
            import httpx

            system, prompt = self.resolve_prompt(data)
            messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
            messages += (
                [{"role": "user", "content": prompt}]
                if isinstance(prompt, str)
                else [message_to_wire(message) for message in prompt or ()]
            )
            async with contextlib.AsyncExitStack() as stack:
                servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
                tools, places, running = await connect_mcp(servers, stack)
                http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
                while True:
                    body = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
                    headers = {"Authorization": f"Bearer {secret}"}
                    answered = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                    if answered.status_code != 200:
                        return vf.ProgramResult(1, "", answered.text)
                    message = answered.json()["choices"][0]["message"]
                    messages.append(message)
                    if not message.get("tool_calls"):
                        return vf.ProgramResult(0, "", "")
                    for call in message["tool_calls"]:
                        name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
                        known = name in places
                        content = await call_mcp(running, places, name, given) if known else f"error: no tool {name!r}"
                        messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})

    return Chat


def _unknown(what: str) -> MissingExtra:
    what = f"this version of verifiers is not supported: {what}."
    return MissingExtra(where=PLACE, what=what, remedy="Install version 0.4 of verifiers.")
