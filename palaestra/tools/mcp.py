"""Tools of MCP servers (Model Context Protocol): a process that is started, or an address.

Knows the client of the package `mcp`, sessions and how servers fail. Knows nothing of episodes: who opens a
connection closes it. A session lives in a task of its own, because the client must be left where it was entered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from palaestra.errors import ContractError, PalaestraError, RecipeError, missing_extra, nearest
from palaestra.tools.rendering import first_line
from palaestra.tools.tool import NAME, Tool, ToolError

CLOSED, LATE = -32000, -32001  # error codes of the protocol's library: the connection ended, no answer in time
MOST_PAGES = 100  # of a list of tools
LEEWAY_S = 10.0  # beyond our own limits: the toolbox's time-out is only a safeguard
NOISE = "Failed to parse JSONRPC message from server"


class Unreachable(PalaestraError, ConnectionError):
    """A server that cannot be started or reached, or that says nothing useful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a server is, and how long to wait for it.

    Attributes:
        command: program and arguments of a server that speaks over its input and output.
        url: of a server that is there already (streamable HTTP). Either this or `command`.
        env: further variables for the process, which gets HOME, PATH and few others. cwd: its folder.
        headers: for the address, such as an authorization.
        only: names of the tools to offer; None: all.
        timeout_s: for a call. start_s: until the server must be ready.
        cost: of a call.
        shared: one session for all episodes of an event loop; the server must not remember anything between calls.

    Raises: RecipeError.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    timeout_s: float = 10.0
    start_s: float = 20.0
    cost: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))
        if bool(self.command) == bool(self.url):
            remedy = "Write `command: [python, server.py]`, or `url: http://127.0.0.1:8000/mcp`, and not both."
            raise RecipeError(where="tool mcp", what="a server needs either a command or a url.", remedy=remedy)
        if not (self.timeout_s > 0 and self.start_s > 0):
            raise RecipeError(where="tool mcp", what="`timeout_s` and `start_s` must be above 0.")

    @property
    def place(self) -> str:
        """How messages call it."""
        return f"MCP server {self.url or ' '.join(self.command)}"

    @property
    def key(self) -> str:
        """Equal for servers that offer the same."""
        return repr((self.command, self.url, sorted(self.env.items()), self.cwd, sorted(self.headers.items())))


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its server describes it. `name` is ours, `called` the server's."""

    name: str
    called: str
    description: str
    parameters: Mapping[str, Any]


class Connection:
    """A session with a server, opened when it is first needed, for one episode or, if `shared`, for all of a loop.

    A server that dies stays dead for those who use it then; who comes later gets a new one.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._session: Session | None = None

    async def tools(self) -> list[Tool]:
        """The server's tools. They are asked for once in a process; a later connection begins with its first call.

        Raises: Unreachable, if the server does not answer; RecipeError, if it lacks a tool of `only`, or if the schema
            of a tool cannot be used.
        """
        offers = OFFERS.get(self.server.key)
        if offers is None:
            try:
                session = await self._opened()
                async with asyncio.timeout(self.server.start_s):
                    offers = await session.offers()
            except (ToolError, TimeoutError) as error:
                what = error.text if isinstance(error, ToolError) else "it does not tell its tools."
                remedy = "Try the command or the address by hand; `start_s` gives it more time."
                raise Unreachable(where=self.server.place, what=what, remedy=remedy) from error
            OFFERS[self.server.key] = offers
        return [self._tool(offer) for offer in _chosen(offers, self.server)]

    async def close(self) -> None:
        """Leave the session; unless others share it, the server is stopped. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            await session.leave()

    async def _opened(self) -> Session:
        if self._session is None or not self._session.here:
            self._session = _shared(self.server) if self.server.shared else Session(self.server)
            self._session.users += 1
        await self._session.ready()
        return self._session

    def _tool(self, offer: Offer) -> Tool:
        async def call(**arguments: Any) -> Any:
            session = await self._opened()
            return await session.call(offer.called, arguments)

        server = self.server
        limit = server.timeout_s + server.start_s + LEEWAY_S
        try:
            return Tool(
                name=offer.name,
                description=offer.description,
                parameters=offer.parameters,
                call=call,
                timeout_s=limit,
                cost=server.cost,
            )
        except ContractError as error:
            remedy = "Name the tools that agents need in `only`, without this one."
            what = f"its tool `{offer.called[:64]}` cannot be offered: {error.what}"
            raise RecipeError(where=server.place, what=what, remedy=remedy) from error


class Session:
    """A running server, or a connection to one. Raises: MissingExtra, without the package mcp."""

    def __init__(self, server: McpServer) -> None:
        _package()
        self.server, self.users, self.failed = server, 0, False
        self._loop = asyncio.get_running_loop()
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by the task)
        self._client: asyncio.Future[Any] = self._loop.create_future()
        self._leaving = asyncio.Event()
        self._over: str | None = None  # what the server said last, once it is gone
        self._task = self._loop.create_task(self._live())

    @property
    def here(self) -> bool:
        """Whether it belongs to the loop that runs now; others are closed with their loops."""
        return self._loop is asyncio.get_running_loop()

    async def ready(self) -> Any:
        """The client, once the server answered. Raises: ToolError."""
        try:
            return await asyncio.shield(self._client)
        except ToolError as error:  # a new one: the same exception must not be raised in two places at once
            raise ToolError(error.text, fault=error.fault) from None

    async def offers(self) -> list[Offer]:
        """What the server can do. Raises: ToolError."""
        client, cursor, found = await self.ready(), None, []
        for _ in range(MOST_PAGES):
            listed = await self._asked(client.list_tools(cursor=cursor), self.server.start_s)
            found.extend(listed.tools)
            cursor = listed.next_cursor
            if not cursor:
                break
        return _named(found)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """What a tool of the server answers. Raises: ToolError, with what went wrong."""
        client = await self.ready()
        if self.failed and self._task.done():
            raise self._died()
        result = await self._asked(client.call_tool(name, arguments), self.server.timeout_s)
        text = _text(result)
        if result.is_error:
            raise ToolError(text or "the server answered with an error")
        return text

    async def leave(self) -> None:
        """One user less; with the last one, a session that is not kept ends."""
        self.users -= 1
        if not self.here or (self.users > 0) or (self.server.shared and not self.failed):
            return
        self._leaving.set()
        await asyncio.wait({self._task})

    async def _asked(self, request: Any, seconds: float) -> Any:
        """The answer to a request. A server that does not answer, or is gone, is not given to anybody else."""
        mcp = _package()
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError:
            self.failed = True
            raise ToolError(f"the server gave no answer within {seconds:g} s", fault="timeout") from None
        except mcp.MCPError as error:
            if error.code == LATE:
                self.failed = True
                raise ToolError(f"the server gave no answer within {seconds:g} s", fault="timeout") from None
            if error.code == CLOSED:
                raise self._died() from None
            raise ToolError(f"the server answered: {first_line(error)}") from None
        except (OSError, EOFError) as error:
            raise self._died(error) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("anyio", "httpx", "httpx2", "httpcore"):
                raise self._died(error) from None
            raise ToolError(f"the server's answer cannot be used: {first_line(error)}") from None

    def _died(self, error: BaseException | None = None) -> ToolError:
        self.failed = True
        said = self._last_words() or (first_line(error) if error else "")
        return ToolError(f"the server has ended{f': {said}' if said else ''}", fault="died")

    def _last_words(self) -> str:
        """The last line that the process wrote to its error output."""
        if self._over is None:
            try:
                self._errors.seek(0, 2)
                self._errors.seek(max(self._errors.tell() - 2000, 0))
                lines = self._errors.read().strip().splitlines()
            except (OSError, ValueError):
                lines = []
            return lines[-1].strip()[:200] if lines else ""
        return self._over

    # ---- the task that holds the client -------------------------------------------------------------------
    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self.server.start_s):
                    client = await stack.enter_async_context(await self._made(stack))
                self._client.set_result(client)
                try:
                    await self._leaving.wait()
                except asyncio.CancelledError:
                    pass  # the loop ends: leave in order, so that no process stays behind
        except (Exception, asyncio.CancelledError) as error:  # at the end of a dead server too, where it is no news
            self.failed = True
            if not self._client.done():
                late = isinstance(error, TimeoutError)
                why = f"it was not ready within {self.server.start_s:g} s" if late else _innermost(error)
                said = self._last_words()
                text = f"the server cannot be used: {why}{f' ({said})' if said else ''}"
                self._client.set_exception(ToolError(text, fault="timeout" if late else "died"))
                self._client.exception()  # seen, also where nobody waits any more
        finally:
            self._over = self._last_words()
            self._errors.close()

    async def _made(self, stack: AsyncExitStack) -> Any:
        mcp = _package()
        if self.server.command:
            program, *rest = self.server.command
            env = dict(self.server.env) or None
            parameters = mcp.StdioServerParameters(command=program, args=rest, env=env, cwd=self.server.cwd)
            return mcp.Client(mcp.stdio_client(parameters, errlog=self._errors))
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        http = await stack.enter_async_context(create_mcp_http_client(headers=dict(self.server.headers)))
        return mcp.Client(streamable_http_client(self.server.url, http_client=http))


# ---- what is kept -----------------------------------------------------------------------------------------
OFFERS: dict[str, list[Offer]] = {}
SHARED: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Session]] = weakref.WeakKeyDictionary()


def _shared(server: McpServer) -> Session:
    """The session of this loop that all use; a new one, if it failed."""
    sessions = SHARED.setdefault(asyncio.get_running_loop(), {})
    key = server.key
    if key not in sessions or sessions[key].failed:
        sessions[key] = Session(server)
    return sessions[key]


def _package() -> Any:
    try:
        import mcp
        from mcp.client import stdio
    except ModuleNotFoundError as error:
        raise missing_extra("mcp", extra="tools", needed_for="tool mcp") from error
    if not stdio.logger.filters:
        stdio.logger.addFilter(_quiet)
    return mcp


def _quiet(record: logging.LogRecord) -> bool:
    """Whether to log: a server that prints what is no message would fill the terminal with tracebacks."""
    return record.msg != NOISE


# ---- what servers say -------------------------------------------------------------------------------------
def _named(listed: list[Any]) -> list[Offer]:
    """The tools of a server under names that can be called in every format."""
    offers: list[Offer] = []
    for one in listed:
        name = re.sub(r"\W", "_", one.name, flags=re.ASCII)[:60]
        name = name if NAME.fullmatch(name) else f"tool_{name}"[:60]
        taken = {offer.name for offer in offers}
        number = next(n for n in range(1, len(taken) + 2) if (f"{name}_{n}" if n > 1 else name) not in taken)
        description = " ".join((one.description or one.title or "").split())
        name = f"{name}_{number}" if number > 1 else name
        offers.append(Offer(name, one.name, description, one.input_schema))
    return offers


def _chosen(offers: list[Offer], server: McpServer) -> list[Offer]:
    if server.only is None:
        return offers
    known = {offer.called: offer for offer in offers} | {offer.name: offer for offer in offers}
    for name in server.only:
        if name not in known:
            what = f"it has no tool `{name}`."
            raise RecipeError(where=server.place, what=what, options=nearest(name, known))
    return [known[name] for name in server.only]


def _text(result: Any) -> str:
    """The content of an answer as text; what is no text is named."""
    pieces = []
    for block in result.content:
        if block.type == "text":
            pieces.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            pieces.append(block.resource.text)
        else:
            kind = getattr(block, "mime_type", None) or getattr(block, "uri", "") or ""
            pieces.append(f"[{block.type} {kind}]".replace(" ]", "]"))
    if not pieces and result.structured_content is not None:
        return str(result.structured_content)
    return "\n".join(pieces)


def _innermost(error: BaseException) -> str:
    """The cause in groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return first_line(error)
