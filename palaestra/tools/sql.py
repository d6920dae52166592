"""Query a SQLite database, read-only or with changes to a private copy, with limits on time and rows.

SQLite's own authorizer checks each statement: it cannot attach another file, change a setting or load an extension.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from palaestra.errors import InvalidData
from palaestra.tools.tool import Tool, ToolError, tool

READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
WRITING = {
    code
    for name, code in vars(sqlite3).items()
    if name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_"))
    or name in ("SQLITE_INSERT", "SQLITE_UPDATE", "SQLITE_DELETE", "SQLITE_TRANSACTION", "SQLITE_SAVEPOINT")
    or name in ("SQLITE_ANALYZE", "SQLITE_REINDEX")
} - {sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE}
NO_FUNCTIONS = {"load_extension", "random", "randomblob", "fts3_tokenizer"}  # unsafe, or different each time
STEPS = 5000  # instructions of SQLite's virtual machine between two looks at the clock
LONGEST_VALUE = 1_000_000  # bytes
LONGEST_QUERY = 100_000
LONGEST_CELL = 200  # characters of a value that are shown
MOST_PAGES = 16_384  # 64 MB


class Database:
    """The database of one episode.

    Args:
        source: path of a SQLite file, or SQL statements that make the tables.
        writes: let statements change the data, which is then a copy in memory.
        rows: most rows of a result that are shown. The text says if there are more.
        timeout_s: seconds after which a query is stopped.

    Raises: InvalidData, if the source cannot be opened.
    """

    def __init__(self, source: str | Path, *, writes: bool = False, rows: int = 50, timeout_s: float = 2.0) -> None:
        self._rows, self._timeout_s = rows, timeout_s
        self._allowed = READING | WRITING if writes else READING
        self._lock = threading.Lock()  # tools run in threads
        self._deadline = 0.0
        self._connection = _opened(source, writes)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        self._connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
        self._connection.set_authorizer(self._judge)
        self._connection.set_progress_handler(lambda: time.monotonic() > self._deadline, STEPS)

    def query(self, statement: str) -> str:
        """Run one statement. Returns its result as text: the names of the columns, then one row on each line.

        Raises: ToolError, with what was wrong.
        """
        if len(statement) > LONGEST_QUERY:
            raise ToolError(f"the statement has {len(statement):,} characters; at most {LONGEST_QUERY:,} are taken")
        with self._running():
            cursor = self._connection.execute(statement)
            rows = cursor.fetchmany(self._rows + 1)
            names = [column[0] for column in cursor.description or ()]
            changed = cursor.rowcount
            cursor.close()
        if not names:
            return f"done, rows changed: {changed}" if changed >= 0 else "done"
        lines = [" | ".join(names), *(" | ".join(map(_cell, row)) for row in rows[: self._rows])]
        lines += ["… more rows"] if len(rows) > self._rows else ["no rows"] if not rows else []
        return "\n".join(lines)

    def tables(self) -> str:
        """The tables and their columns, one table on each line."""
        with self._running():
            listed = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            names = [name for (name,) in self._connection.execute(f"{listed} ORDER BY name")]
            lines = []
            for name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                columns = self._connection.execute(f"SELECT * FROM {quoted} LIMIT 0").description
                lines.append(f"{name}({', '.join(column[0] for column in columns)})")
        return "\n".join(lines) or "no tables"

    def close(self) -> None:
        """Close the database. A copy in memory is lost."""
        with self._lock:
            self._connection.close()

    def _judge(self, action: int, first: str | None, second: str | None, *place: Any) -> int:
        """Whether a statement may do something. SQLite calls this for each of its actions."""
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in NO_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in self._allowed else sqlite3.SQLITE_DENY

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run one statement at a time, with its time limit. An error of SQLite becomes a ToolError."""
        with self._lock:
            self._deadline = time.monotonic() + self._timeout_s
            try:
                yield
            except sqlite3.OperationalError as error:
                if "interrupted" in str(error):
                    raise ToolError(f"the query took longer than {self._timeout_s:g} s", fault="timeout") from None
                raise ToolError(_told(error)) from None
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, UnicodeError) as error:
                raise ToolError(_told(error)) from None


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


# ---- sources ----------------------------------------------------------------------------------------------
def _opened(source: str | Path, writes: bool) -> sqlite3.Connection:
    script = isinstance(source, str) and any(sign in source for sign in ";\n")
    try:
        if script:
            connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            connection.deserialize(_built(str(source)))
            return connection
        address = f"{Path(source).resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master")
        if writes:
            copy = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            connection.backup(copy)
            connection.close()
            return copy
        return connection
    except sqlite3.Error as error:
        shown = "SQL statements" if script else str(source)
        remedy = "Name a SQLite file, or give SQL statements that end with `;`."
        raise InvalidData(where=f"database: {shown}", what=f"it cannot be opened: {error}.", remedy=remedy) from error


@lru_cache(maxsize=32)
def _built(script: str) -> bytes:
    """The database that SQL statements make, as bytes. Each episode starts with a copy."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("PRAGMA user_version = 1")  # an empty database could not be serialized
        connection.executescript(script)
        return connection.serialize()
    finally:
        connection.close()


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    text = " ".join(str(value).splitlines()) if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def _told(error: Exception) -> str:
    text = str(error)
    if "authoriz" in text or "prohibited" in text:
        return f"this is not allowed here: {text}"
    return text
