"""Build the tools that a recipe lists: built-in tools by name, functions of files, and MCP servers."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from palaestra.envs.worlds.tool_tasks.goods import Problem
from palaestra.errors import RecipeError, nearest
from palaestra.registry import NonNegative, Positive, PositiveInt, Section, check_options, part
from palaestra.tools import Tool, ToolError, tool
from palaestra.tools.calculator import calculator
from palaestra.tools.mcp import Connection, McpServer
from palaestra.tools.python import PythonTool
from palaestra.tools.sandbox import PythonPool
from palaestra.tools.search import Index, corpus, search_tool
from palaestra.tools.sql import Database, sql_tools

Spec = str | dict[str, dict[str, Any]]


class Plain(Section):
    """Options of a tool that has only a cost."""

    cost: NonNegative = 0.0


class Searching(Section):
    """Options of `search`. `documents`: a JSONL file or a folder. None: the built-in table."""

    documents: str | None = None
    k: PositiveInt = 3
    snippet: PositiveInt = 400
    cost: NonNegative = 0.0


class Querying(Section):
    """Options of `sql`. `database`: a SQLite file. None: the built-in table."""

    database: str | None = None
    writes: bool = False
    rows: PositiveInt = 50
    timeout_s: Positive = 2.0
    cost: NonNegative = 0.0


class Running(Section):
    """Options of `python`. Variables last for an episode. "subprocess" isolates nothing: only for trusted code."""

    backend: Literal["bubblewrap", "subprocess"] = "bubblewrap"
    timeout_s: Positive = 5.0
    memory_mb: PositiveInt = 256
    cost: NonNegative = 0.0


class Serving(Section):
    """Options of `mcp`: the fields of palaestra.tools.mcp.McpServer."""

    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = {}
    cwd: str | None = None
    headers: dict[str, str] = {}
    only: tuple[str, ...] | None = None
    timeout_s: Positive = 10.0
    start_s: Positive = 20.0
    cost: NonNegative = 0.0
    shared: bool = False


OPTIONS: dict[str, type[Section]] = {
    "lookup": Plain,
    "calculator": Plain,
    "search": Searching,
    "sql": Querying,
    "python": Running,
    "mcp": Serving,
}
QUICK = frozenset({"lookup", "calculator", "search", "tables"})  # these answer at once, without a thread


class Supply:
    """Builds the tools of each episode, with their servers, databases and interpreters.

    Args:
        specs: as in a recipe: `calculator`, `file.py:function`, `{sql: {database: shop.db}}`, `{mcp: {url: …}}`.

    Raises: RecipeError, UnknownName or ContractError, for a tool that cannot be built.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        if not specs:
            raise RecipeError(where="environment tool_tasks", what="`tools` is empty.", remedy="Name one or more.")
        self._specs = [_checked(spec) for spec in specs]
        self.names = [name for name, _ in self._specs]
        self._databases: list[Database] = []
        self._connections: list[Connection] = []
        self._pythons: list[PythonTool] = []

    @property
    def remembers(self) -> bool:
        """Whether a call may change the results of later calls in a way that cannot be undone."""
        lasting = any(name in ("mcp", "python") for name, _ in self._specs)
        return lasting or any(isinstance(chosen, Querying) and chosen.writes for _, chosen in self._specs)

    def needs_table(self) -> list[str]:
        """The names of the tools that read the built-in table."""
        sources = {"lookup": None, "search": "documents", "sql": "database"}
        return [n for n, o in self._specs if n in sources and getattr(o, sources[n] or "", None) is None]

    async def open(self, problem: Problem | None) -> list[Tool]:
        """The tools of a new episode. Those of the last one are closed first."""
        await self.close()
        found: list[Tool] = []
        for name, chosen in self._specs:
            found.extend(await self._made(name, chosen, problem))
        return found

    async def close(self) -> None:
        """Stop the servers and interpreters, and close the databases."""
        databases, self._databases = self._databases, []
        connections, self._connections = self._connections, []
        pythons, self._pythons = self._pythons, []
        for python in pythons:
            python.close()
        for database in databases:
            database.close()
        for connection in connections:
            await connection.close()

    async def _made(self, name: str, chosen: Any, problem: Problem | None) -> list[Tool]:
        if isinstance(chosen, Tool):
            return [chosen]
        if name == "calculator":
            return [calculator(cost=chosen.cost)]
        if name == "lookup" and problem is not None:
            return [_lookup(problem, chosen.cost)]
        if name == "search":
            found = _index(chosen, problem)
            return [search_tool(found, k=chosen.k, cost=chosen.cost)]
        if name == "sql":
            return sql_tools(self._database(chosen, problem), cost=chosen.cost)
        if name == "python":
            self._pythons.append(
                PythonTool(_pool(chosen.backend), timeout_s=chosen.timeout_s, memory_mb=chosen.memory_mb)
            )
            return [dataclasses.replace(self._pythons[-1].tool, cost=chosen.cost)]
        connection = Connection(McpServer(**dict(chosen)))
        self._connections.append(connection)
        return await connection.tools()

    def _database(self, chosen: Querying, problem: Problem | None) -> Callable[[], Database]:
        opened: list[Database] = []
        lock = threading.Lock()  # the first calls of an episode may come at the same time

        def database() -> Database:
            with lock:
                if not opened:
                    source = chosen.database or (problem.script if problem else "")
                    made = Database(source, writes=chosen.writes, rows=chosen.rows, timeout_s=chosen.timeout_s)
                    opened.append(made)
                    self._databases.append(made)
                return opened[0]

        return database


@functools.cache
def _pool(backend: Literal["bubblewrap", "subprocess"]) -> PythonPool:
    """The interpreters for all episodes of this process."""
    pool = PythonPool(backend=backend)
    atexit.register(pool.close)
    return pool


def _index(chosen: Searching, problem: Problem | None) -> Index:
    if chosen.documents is not None:
        return corpus(chosen.documents, snippet=chosen.snippet)
    return Index(problem.documents if problem else {}, snippet=chosen.snippet)


def _lookup(problem: Problem, cost: float) -> Tool:
    columns = problem.words.columns

    def found(name: str, column: str) -> str:
        if (name, column) not in problem.table:
            known = ", ".join(problem.names if name not in problem.names else columns)
            raise ToolError(f"no {name} {column}; there are: {known}")
        return str(problem.table[name, column])

    return dataclasses.replace(LOOKUP, call=found, cost=cost)


def lookup(name: str, column: str) -> str:
    """Find a number of the table."""
    raise NotImplementedError


LOOKUP = tool(lookup, timeout_s=5.0)  # made once, since building a schema takes longer than a call


# ---- reading the list -------------------------------------------------------------------------------------
def _checked(spec: Spec) -> tuple[str, Any]:
    """The name of a tool, with its options or, for a user's function, the tool itself."""
    if isinstance(spec, Mapping) and len(spec) != 1:
        remedy = "Write each tool as an entry of its own, such as `{sql: {database: shop.db}}`."
        what = f"{dict(spec)} is not one tool with its options."
        raise RecipeError(where="environment tool_tasks, tools", what=what, remedy=remedy)
    name, options = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    where = f"environment tool_tasks, tool {name}"
    if name in OPTIONS:
        chosen = OPTIONS[name](**check_options(OPTIONS[name], options or {}, where=where, owner=f"`{name}`"))
        if name == "mcp":
            McpServer(**dict(chosen))
        return name, chosen
    if ":" not in name:
        remedy = "Write a function of your own as `file.py:function`."
        raise RecipeError(where=where, what="no tool has this name.", options=nearest(name, OPTIONS), remedy=remedy)
    found = part("tool", name, where=where).target
    made = found if isinstance(found, Tool) else tool(found)
    given = check_options(Plain, options or {}, where=where, owner=f"`{name}`")
    return made.name, dataclasses.replace(made, cost=given["cost"]) if options else made
