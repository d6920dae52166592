"""The process that runs SQL statements. `tools/sandbox/workers.py` starts it, limits its time and ends it.

It uses the standard library only. Requests and answers are lines of JSON. The process ends when its parent does.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import random
import resource
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
WRITING = {
    code
    for name, code in vars(sqlite3).items()
    if name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_"))
    or name in ("SQLITE_INSERT", "SQLITE_UPDATE", "SQLITE_DELETE", "SQLITE_TRANSACTION", "SQLITE_SAVEPOINT")
    or name in ("SQLITE_ANALYZE", "SQLITE_REINDEX")
} - {sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE}
UNSAFE = {"load_extension", "fts3_tokenizer"}
RANDOM = {"random", "randomblob"}  # different each time
CLOCKS = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")
NOWS = {"current_timestamp": "datetime", "current_date": "date", "current_time": "time"}
STEPS = 5000  # instructions of SQLite's virtual machine between two looks at the clock
LONGEST_VALUE = 1_000_000  # bytes
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 500_000,  # bytes
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,  # matching a pattern is not interrupted
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
LONGEST_CELL = 200  # characters of a value that are shown
LONGEST_RESULT = 100_000  # characters
MOST_PAGES = 16_384  # 64 MB
HEAP = 256 << 20  # bytes that SQLite may use
ADDRESSES = 1 << 30  # bytes of the whole process
KEPT = 1 << 20  # bytes of a database that is made from statements and kept for the next time
BUILD_S = 60.0  # seconds in which the statements of a source must end


class Refused(Exception):
    """What a statement did wrong. `late`: it took too long."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class Runner:
    """One open database.

    Args:
        asked: `path` of a file or `script` of statements; `copy`: the path of the private copy that statements change,
            or an empty text; `now`: the time that SQL functions give.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._deadline = time.monotonic() + BUILD_S
        self._timeout_s = BUILD_S
        self._allowed = READING | WRITING if asked["copy"] else READING
        self.connection = opened(asked)
        self.connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        for limit, value in LIMITS.items():
            self.connection.setlimit(limit, value)
        self.connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
        self.connection.execute("PRAGMA temp_store = MEMORY")  # so that HEAP limits it; files would have no limit
        fix_clock(self.connection, asked["now"])
        self.connection.set_authorizer(self._judge)
        self.connection.set_progress_handler(lambda: time.monotonic() > self._deadline, STEPS)

    def query(self, statement: str, *, rows: int, timeout_s: float) -> str:
        """Run one statement. Returns its result as text."""
        with self._running(timeout_s):
            cursor = self.connection.execute(statement)
            lines, more = shown_rows(cursor, rows)
            names = [column[0][:LONGEST_CELL] for column in cursor.description or ()]
            changed = cursor.rowcount
            cursor.close()
        if not names:
            return f"done, rows changed: {changed}" if changed >= 0 else "done"
        lines += ["… more rows"] if more else ["no rows"] if not lines else []
        return "\n".join([" | ".join(names), *lines])

    def tables(self, *, timeout_s: float) -> str:
        """The tables and their columns."""
        with self._running(timeout_s):
            listed = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            names = [name for (name,) in self.connection.execute(f"{listed} ORDER BY name")]
            lines = []
            for name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                columns = self.connection.execute(f"SELECT * FROM {quoted} LIMIT 0").description
                lines.append(f"{name}({', '.join(column[0] for column in columns)})")
        return "\n".join(lines) or "no tables"

    def _judge(self, action: int, first: str | None, second: str | None, *place: Any) -> int:
        """Whether a statement may do something. SQLite calls this for each of its actions."""
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in UNSAFE | RANDOM:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in self._allowed else sqlite3.SQLITE_DENY

    @contextmanager
    def _running(self, timeout_s: float) -> Iterator[None]:
        """Run one statement with its time limit. An error of SQLite becomes Refused."""
        self._deadline = time.monotonic() + timeout_s
        try:
            yield
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise Refused(late(timeout_s), late=True) from None
            raise Refused(told(error)) from None
        except MemoryError:
            raise Refused(f"the statement needs more than {HEAP >> 20} MB of memory") from None
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, UnicodeError) as error:
            raise Refused(told(error)) from None


# ---- results ----------------------------------------------------------------------------------------------
def shown_rows(cursor: sqlite3.Cursor, most: int) -> tuple[list[str], bool]:
    """The first rows as lines, and whether there are more. One row at a time is in memory."""
    lines: list[str] = []
    size = 0
    for row in cursor:
        if len(lines) >= most or size > LONGEST_RESULT:
            return lines, True
        lines.append(" | ".join(map(cell, row)))
        size += len(lines[-1])
    return lines, False


def cell(value: Any) -> str:
    """A value as text on one line, cut if it is long."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    text = " ".join(str(value).splitlines()) if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def late(timeout_s: float) -> str:
    """What the agent reads about a query that took too long."""
    return f"the query took longer than {timeout_s:g} s"


def told(error: Exception) -> str:
    """What the agent reads about an error."""
    text = str(error)
    if "authoriz" in text or "prohibited" in text:
        return f"this is not allowed here: {text}"
    return text


# ---- the same results each time ---------------------------------------------------------------------------
def _as_read(value: Any) -> Any:
    """A value as SQLite's functions of time read it: a blob is a text, and a text ends before a NUL."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return text.partition("\0")[0] if isinstance(text, str) else text


def fix_clock(connection: sqlite3.Connection, now: str) -> None:
    """Let all functions of SQL that read the clock give the time `now`. SQLite itself still computes with it."""
    helper = sqlite3.connect(":memory:")

    def like(name: str, place: int) -> Callable[..., Any]:
        def function(*values: Any) -> Any:
            given = [_as_read(value) for value in values]
            if len(given) == place or (name != "timediff" and str(given[place]).lower() in ("subsec", "subsecond")):
                given.insert(place, now)
            for number, value in enumerate(given):
                if number >= place and isinstance(value, str) and value.lower() == "now":
                    given[number] = now
            marks = ", ".join("?" * len(given))
            return helper.execute(f"SELECT {name}({marks})", given).fetchone()[0]

        return function

    for name in CLOCKS:
        try:
            helper.execute(f"SELECT {name}('2000-01-01', '2000-01-01')")
        except sqlite3.OperationalError:  # this version of SQLite does not have it
            continue
        connection.create_function(name, -1, like(name, int(name == "strftime")), deterministic=True)
    for name, base in NOWS.items():
        value = helper.execute(f"SELECT {base}(?)", (now,)).fetchone()[0]
        connection.create_function(name, 0, functools.partial(lambda value: value, value), deterministic=True)


def fix_chance(connection: sqlite3.Connection) -> None:
    """Let the functions of chance give the same values each time that the same statements run."""
    chance = random.Random(0)
    connection.create_function("random", 0, lambda: chance.getrandbits(64) - (1 << 63))
    connection.create_function("randomblob", 1, lambda size: chance.randbytes(max(1, min(int(size), LONGEST_VALUE))))


# ---- sources ----------------------------------------------------------------------------------------------
def opened(asked: dict[str, Any]) -> sqlite3.Connection:
    """A connection to the database that was asked for. A copy that exists already is opened again as it is."""
    copy = asked["copy"]
    if copy and os.path.exists(copy):
        return copied(copy)
    if asked["script"]:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(built(asked["script"], asked["now"]))
    else:
        connection = sqlite3.connect(asked["path"], uri=True, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master")
    if not copy:
        return connection
    unfinished = sqlite3.connect(f"{copy}.new")
    connection.backup(unfinished)
    unfinished.close()
    connection.close()
    os.rename(f"{copy}.new", copy)
    return copied(copy)


def copied(path: str) -> sqlite3.Connection:
    """A connection to the private copy. What a killed process left half done there is undone now."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = PERSIST")  # faster than removing the journal after each change
    connection.execute("PRAGMA synchronous = OFF")  # it need not outlive the machine
    connection.execute("SELECT count(*) FROM sqlite_master")
    return connection


def built(script: str, now: str) -> bytes:
    """The database that SQL statements make, as bytes. Small ones are kept for the next time."""
    if (script, now) in BUILT:
        return BUILT[script, now]
    connection = sqlite3.connect(":memory:")
    until = time.monotonic() + BUILD_S
    try:
        connection.execute("PRAGMA user_version = 1")  # an empty database could not be serialized
        connection.execute(f"PRAGMA max_page_count = {MOST_PAGES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        fix_clock(connection, now)
        fix_chance(connection)
        connection.set_authorizer(judge_source)
        connection.set_progress_handler(lambda: time.monotonic() > until, STEPS)
        connection.executescript(script)
        content = connection.serialize()
    finally:
        connection.close()
    if len(content) <= KEPT:
        while len(BUILT) >= 32:
            del BUILT[next(iter(BUILT))]
        BUILT[script, now] = content
    return content


BUILT: dict[tuple[str, str], bytes] = {}


def judge_source(action: int, first: str | None, second: str | None, *place: Any) -> int:
    """Whether a statement of a source may do something. It may do all but reach other files and other code."""
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and "directory" in (first or "").lower():
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in UNSAFE:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


# ---- the process ------------------------------------------------------------------------------------------
def answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One answer for each request: {"text": …}, {"refused": …, "late": …} or, after `open`, {"unopened": …}."""
    runner: Runner | None = None
    for asked in requests:
        try:
            if asked["do"] == "open":
                if runner:
                    runner.connection.close()
                runner = None
                runner = Runner(asked)
                yield {"text": ""}
            elif asked["do"] == "query":
                assert runner
                yield {"text": runner.query(asked["statement"], rows=asked["rows"], timeout_s=asked["timeout_s"])}
            else:
                assert runner
                yield {"text": runner.tables(timeout_s=asked["timeout_s"])}
        except Refused as refused:
            yield {"refused": str(refused), "late": refused.late}
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            yield {"unopened": str(error) or "it is too large"}


def main() -> None:
    """Answer the lines of standard input. The process ends with it, also while a statement runs."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    settings = sqlite3.connect(":memory:")
    settings.execute(f"PRAGMA hard_heap_limit = {HEAP}")  # for all connections of the process
    lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(json.loads(line))
        os._exit(0)  # the parent has ended

    threading.Thread(target=read, daemon=True).start()
    for answer in answers(iter(lines.get, None)):
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
