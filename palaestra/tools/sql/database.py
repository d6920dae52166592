"""Query a SQLite database, read-only or with changes to a private copy, with limits on time, memory and rows.

Statements run in a process of their own. SQLite's own authorizer checks each of them: it cannot attach another file,
change a setting or load an extension.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from palaestra.errors import InvalidData, PalaestraError
from palaestra.tools.sandbox.workers import Died, Worker, Workers
from palaestra.tools.temporary import TemporaryFolder
from palaestra.tools.tool import Tool, ToolError, tool

LONGEST_QUERY = 100_000  # characters
GRACE_S = 0.5  # SQLite ends a query in time itself, except inside a single function; then its process is killed
WORKERS = Workers(("-I", "-S", str(Path(__file__).with_name("inside.py"))), where="tool: sql")
OPENING_S = 65.0  # a little more than the process takes at most to run the statements of a source
NOW = "2025-01-01 00:00:00"


class Database:
    """The database of one episode. A query gives the same result each time.

    `random()` and `randomblob()` are refused in queries, and in the statements of a source they give the same values
    each time. `datetime('now')`, CURRENT_TIMESTAMP and all other functions that read the clock give `now`.

    A database that is only read uses a process while a query runs. One with `writes` has a process until `close`.

    Args:
        source: path of a SQLite file, or SQL statements that make the tables.
        writes: let statements change the data, which is then a copy in a temporary folder.
        rows: most rows of a result that are shown. The text says if there are more.
        timeout_s: seconds after which a query is stopped.
        now: the time that SQL functions give, in UTC.

    Raises: InvalidData, if the source cannot be opened. PalaestraError, for a `now` that is no time.
    """

    def __init__(
        self, source: str | Path, *, writes: bool = False, rows: int = 50, timeout_s: float = 2.0, now: str = NOW
    ) -> None:
        try:
            datetime.fromisoformat(now)
        except ValueError:
            raise PalaestraError(
                where="Database", what=f"`now` is {now!r}, which is no time.", remedy=f'Write it as "{NOW}".'
            ) from None
        script = isinstance(source, str) and any(sign in source for sign in ";\n")
        self._shown = "SQL statements" if script else str(source)
        self._rows, self._timeout_s = rows, timeout_s
        self._lock = threading.Lock()  # tools run in threads
        self._folder = TemporaryFolder("sql") if writes else None
        self._worker: Worker | None = None  # kept from query to query if there are writes
        self._closed = False
        self._asked = {
            "do": "open",
            "script": str(source) if script else "",
            "path": "" if script else f"{Path(source).resolve().as_uri()}?mode=ro",
            "copy": str(self._folder.path / "copy.db") if self._folder else "",
            "now": now,
        }
        try:
            with self._lock:
                self._release(self._taken())
        except BaseException:
            self.close()
            raise

    def query(self, statement: str) -> str:
        """Run one statement. Returns its result as text: the names of the columns, then one row on each line.

        Raises: ToolError, with what was wrong.
        """
        if len(statement) > LONGEST_QUERY:
            raise ToolError(f"the statement has {len(statement):,} characters; at most {LONGEST_QUERY:,} are taken")
        return self._answer({"do": "query", "statement": statement, "rows": self._rows})

    def tables(self) -> str:
        """The tables and their columns, one table on each line."""
        return self._answer({"do": "tables"})

    def close(self) -> None:
        """Close the database. A private copy is lost. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            if self._worker:
                self._worker.holds = None
                WORKERS.give(self._worker)
                self._worker = None
            if self._folder:
                self._folder.close()

    def _answer(self, request: dict[str, Any]) -> str:
        with self._lock:
            if self._closed:
                raise ToolError("the database is closed")
            try:
                worker = self._taken()
                answer = worker.ask(request | {"timeout_s": self._timeout_s}, wait_s=self._timeout_s + GRACE_S)
            except Died as died:
                self._worker = None
                undone = "; what it and an open transaction had changed is undone" if self._folder else ""
                if died.late:
                    raise ToolError(
                        f"the query took longer than {self._timeout_s:g} s{undone}", fault="timeout"
                    ) from None
                raise ToolError(f"the process that ran the query died{undone}", fault="died") from None
            except InvalidData as fault:
                raise ToolError(f"the database cannot be opened: {fault.what}", fault="died") from None
            self._release(worker)
        if "text" in answer:
            return str(answer["text"])
        if "refused" in answer:
            raise ToolError(str(answer["refused"]), fault="timeout" if answer["late"] else "raised")
        raise ToolError(str(answer["unopened"]))

    def _taken(self) -> Worker:
        """A process that has this database open.

        Raises: InvalidData, if it cannot be opened. Died, if its process dies meanwhile.
        """
        worker = self._worker
        if worker is not None and not worker.alive:
            worker.kill()
            worker = None
        worker = worker or WORKERS.take(self._asked)
        if worker.holds == self._asked:
            return worker
        worker.holds = None
        try:
            answer = worker.ask(self._asked, wait_s=OPENING_S)
        except Died as died:
            answer = {"unopened": "it takes too long" if died.late else "its process died"}
        if "unopened" in answer:
            if worker.alive:
                WORKERS.give(worker)
            remedy = "Name a SQLite file, or give SQL statements that end with `;`."
            what = f"it cannot be opened: {answer['unopened']}."
            raise InvalidData(where=f"database: {self._shown}", what=what, remedy=remedy)
        worker.holds = self._asked
        return worker

    def _release(self, worker: Worker) -> None:
        if self._folder:
            self._worker = worker
        else:
            WORKERS.give(worker)


def sql_tools(database: Callable[[], Database], *, cost: float = 0.0) -> list[Tool]:
    """Two tools: `sql` runs a statement, `tables` lists the tables.

    Args:
        database: returns the database of the episode. Each call of a tool calls it.
        cost: cost of one call of `sql`.
    """

    run = dataclasses.replace(SQL, call=lambda query: database().query(query), cost=cost)
    return [run, dataclasses.replace(TABLES, call=lambda: database().tables(), cost=cost)]


def sql(query: str) -> str:
    """Run one SQL statement and show its result.

    Args:
        query: one statement in the dialect of SQLite.
    """
    raise NotImplementedError


def tables() -> str:
    """Show the tables and their columns."""
    raise NotImplementedError


SQL, TABLES = tool(sql), tool(tables)  # made once, because building the schema takes longer than a call
