"""Tools of MCP servers (Model Context Protocol). A server is a process that is started here, or an address.

Whoever opens a connection closes it. Each session runs in a task of its own, because the client of the package `mcp`
must be closed in the task that opened it.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import IO, Any

from palaestra.errors import ContractError, PalaestraError, RecipeError, missing_extra, nearest
from palaestra.tools.rendering import first_line
from palaestra.tools.tool import Tool, ToolError, refuse_clash, usable_name

CLOSED, LATE = -32000, -32001  # error codes of the package `mcp`: the connection ended, no answer in time
MOST_PAGES = 100  # most pages of a list of tools
LEEWAY_S = 10.0  # added to the limits of the server, because the toolbox's time-out is only a safeguard
NOISE = "Failed to parse JSONRPC message from server"


class Unreachable(PalaestraError, ConnectionError):
    """A server cannot be started or reached, or does not list its tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a server is, and how long to wait for it.

    Attributes:
        command: program and arguments of a server that speaks over its standard input and output.
        url: address of a running server (streamable HTTP). Give either `command` or `url`.
        env: further environment variables of the process, which gets HOME, PATH and a few others. cwd: its folder.
        headers: HTTP headers for the address, such as an authorization.
        only: names of the tools to offer. None: all.
        timeout_s: seconds for one call. start_s: seconds until the server must be ready.
        cost: cost of one call.
        shared: use one session for all episodes of an event loop. The server must then keep nothing between calls.

    Raises: RecipeError, unless there is either a command or a url, and the limits are above 0.
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
            what = f"`timeout_s` is {self.timeout_s} and `start_s` is {self.start_s}."
            raise RecipeError(where="tool mcp", what=what, remedy="Set both to a number of seconds above 0.")

    @property
    def place(self) -> str:
        """The server as messages name it."""
        return f"MCP server {self.url or ' '.join(self.command)}"

    @property
    def key(self) -> str:
        """Equal for servers that offer the same tools."""
        return repr((self.command, self.url, sorted(self.env.items()), self.cwd, sorted(self.headers.items())))


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its server describes it. Agents call it `name`, the server calls it `called`."""

    name: str
    called: str
    description: str
    parameters: Mapping[str, Any]


class Connection:
    """A session with a server for one episode or, if `shared`, for all episodes of an event loop.

    The session opens when it is first needed. If its server dies, its users get no other; a later connection gets a
    new session.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._session: Session | None = None

    async def tools(self) -> list[Tool]:
        """The server's tools. The server is asked once in a process; a later connection opens at its first call.

        Raises: Unreachable, if the server does not answer; RecipeError, if it lacks a tool of `only`, or if the schema
            of a tool cannot be used; ContractError, if agents would call two tools by the same name.
        """
        offers = OFFERS.get(self.server.key)
        if offers is None:
            try:
                session = await self._opened()
                async with asyncio.timeout(self.server.start_s):
                    offers = await session.offers()
            except (ToolError, TimeoutError) as error:
                late = f"it did not list its tools within {self.server.start_s:g} s."
                what = error.text if isinstance(error, ToolError) else late
                remedy = "Try the command or the address by hand. Raise `start_s` if the server needs more time."
                raise Unreachable(where=self.server.place, what=what, remedy=remedy) from error
            OFFERS[self.server.key] = offers
        return [self._tool(offer) for offer in _chosen(offers, self.server)]

    async def close(self) -> None:
        """Leave the session. A session that is not shared ends, and its server stops. Closing twice does nothing."""
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
    """A running server, or a connection to one. Raises: MissingExtra, without the package `mcp`."""

    def __init__(self, server: McpServer) -> None:
        _package()
        self.server, self.users, self.failed = server, 0, False
        self._loop = asyncio.get_running_loop()
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by the task)
        self._client: asyncio.Future[Any] = self._loop.create_future()
        self._leaving = asyncio.Event()
        self._over: str | None = None  # the server's last line of error output, once it has ended
        self._task = self._loop.create_task(self._live())

    @property
    def here(self) -> bool:
        """Whether the session belongs to the running event loop. Other sessions are closed with their loops."""
        return self._loop is asyncio.get_running_loop()

    async def ready(self) -> Any:
        """Wait until the server has answered. Returns the client. Raises: ToolError."""
        try:
            return await asyncio.shield(self._client)
        except ToolError as error:  # raised anew, because several callers may wait for the same exception
            raise ToolError(error.text, fault=error.fault) from None

    async def offers(self) -> list[Offer]:
        """The tools that the server lists. Raises: ToolError."""
        client, cursor, found = await self.ready(), None, []
        for _ in range(MOST_PAGES):
            listed = await self._asked(client.list_tools(cursor=cursor), self.server.start_s)
            found.extend(listed.tools)
            cursor = listed.next_cursor
            if not cursor:
                break
        return _named(found)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool of the server and return its answer as text. Raises: ToolError, with what went wrong."""
        client = await self.ready()
        if self.failed and self._task.done():
            raise self._died()
        result = await self._asked(client.call_tool(name, arguments), self.server.timeout_s)
        text = _text(result)
        if result.is_error:
            raise ToolError(text or "the server answered with an error")
        return text

    async def leave(self) -> None:
        """Take off one user. Without users the session ends, unless it is shared and has not failed."""
        self.users -= 1
        if not self.here or (self.users > 0) or (self.server.shared and not self.failed):
            return
        self._leaving.set()
        await asyncio.wait({self._task})

    async def _asked(self, request: Any, seconds: float) -> Any:
        """The answer to a request. A session whose server does not answer or has ended is marked as failed."""
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
        """The last line that the process wrote to standard error."""
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
                    pass  # the event loop ends; the client is closed below, so that no process stays behind
        except (Exception, asyncio.CancelledError) as error:  # closing the client of a dead server raises too
            self.failed = True
            if not self._client.done():
                late = isinstance(error, TimeoutError)
                why = f"it was not ready within {self.server.start_s:g} s" if late else _innermost(error)
                said = self._last_words()
                text = f"the server cannot be used: {why}{f' ({said})' if said else ''}"
                self._client.set_exception(ToolError(text, fault="timeout" if late else "died"))
                self._client.exception()  # asyncio would warn of an exception that nobody has read
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
    """The shared session of this event loop. A session that failed is replaced."""
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
    """Whether to log a record. A server that prints other text would fill the terminal with tracebacks."""
    return record.msg != NOISE


# ---- what servers say -------------------------------------------------------------------------------------
def _named(listed: list[Any]) -> list[Offer]:
    """The tools of a server, with the names for agents. Two may have one name: `_chosen` refuses them."""
    offers: list[Offer] = []
    for one in listed:
        description = " ".join((one.description or one.title or "").split())
        offers.append(Offer(usable_name(one.name), one.name, description, one.input_schema))
    return offers


def _chosen(offers: list[Offer], server: McpServer) -> list[Offer]:
    known = {offer.name: offer for offer in offers} | {offer.called: offer for offer in offers}
    for name in server.only or ():
        if name not in known:
            what = f"it has no tool `{name}`."
            remedy = "Name tools of the server in `only`."
            raise RecipeError(where=server.place, what=what, options=nearest(name, known), remedy=remedy)
    chosen = offers if server.only is None else [known[name] for name in server.only]
    remedy = "Name the tools that agents need in `only`, with one of these two."
    refuse_clash({offer.called: offer.name for offer in chosen}, where=server.place, remedy=remedy)
    return chosen


def _text(result: Any) -> str:
    """The content of an answer as text. Other content, such as an image, is only named."""
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
    """The first exception inside nested exception groups, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return first_line(error)
