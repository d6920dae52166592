"""Runs episodes of verifiers (version 0.4) so that each call of a model becomes a turn of an agent.

All of verifiers runs in one event loop in its own thread, because its servers live longer than the event loops of
rollouts. The program of a seat is the chat loop of `harness`. Its requests go through verifiers' interception, which
keeps the trace, to the model's address, as they would to any provider. There is `endpoint`, a server on the loopback.
It passes each request on as an `Ask` and waits for the answer.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from palaestra.envs.adapters.verifiers.endpoint import MODEL, Endpoint
from palaestra.envs.adapters.versions import TESTED, installed, note_version
from palaestra.errors import MissingExtra, missing_extra

PLACE = "environment verifiers"
HARNESS = "palaestra_chat"  # verifiers finds harnesses by the names of modules
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
        self.endpoint = Endpoint(self._asked)
        self.held: set[asyncio.Task[None]] = set()  # keeps tasks alive, which an event loop does not
        threading.Thread(target=self.loop.run_forever, daemon=True, name="palaestra-verifiers").start()

    def _asked(self, session: str, body: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]] | None:
        """Ask the agent of a seat. Returns a future for its message; None, if nobody plays in this session."""
        if session not in self.seats:
            return None
        trace, play = self.seats[session]
        answer: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        play.ask(Ask(trace.agent.name or "agent", list(body["messages"]), list(body.get("tools") or ()), answer))
        return answer

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
        self._env = env
        self._episode: asyncio.Task[None] | None = None
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
        if self._open is not None:
            self._open.answer.cancel()
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
            await machine().endpoint.start()
            async with self._env.serving():
                ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    async def _run(self, task: Any, events: asyncio.Queue[Any]) -> None:
        vf = package()
        endpoint = machine().endpoint
        address = vf.EvalClientConfig(base_url=endpoint.url, api_key_var="", headers=endpoint.headers)
        context = vf.ModelContext(model=MODEL, client=address)
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


# ---- the package, with our harness ---------------------------------------------------------------------------
@functools.cache
def package() -> Any:
    """The module verifiers.v1. Our harness is made importable for it.

    Raises: MissingExtra, if verifiers is not installed, or is older than 0.4.
    """
    found = installed("verifiers")
    if found is None:
        raise missing_extra("verifiers", extra="adapters", needed_for=PLACE)
    try:
        import verifiers.v1 as vf

        harness = importlib.import_module("palaestra.envs.adapters.verifiers.harness")
    except ImportError as error:
        what = f"version {found} of verifiers lacks what the adapter uses: {error}."
        remedy = f"Install the version that was tested: pip install verifiers=={TESTED['verifiers'].version}"
        raise MissingExtra(where=PLACE, what=what, remedy=remedy) from error
    note_version("verifiers")
    sys.modules[HARNESS] = harness
    return vf
