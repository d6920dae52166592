"""Tools work in a process that has more than 1,024 open files, whose numbers `select` does not take."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from palaestra.tools.sandbox import BubblewrapSandbox, PythonPool, Session, SubprocessSandbox
from palaestra.tools.sql import Database
from tests.extras import skip_without

MANY = 1100


@pytest.fixture(autouse=True)
def many() -> Iterator[None]:
    """The first 1,100 numbers are taken."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * MANY:
        pytest.skip("this machine allows too few open files")
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < MANY:
        taken.append(os.dup(taken[0]))
    yield
    for fd in taken:
        os.close(fd)


def test_sql() -> None:
    database = Database("CREATE TABLE t(a); INSERT INTO t VALUES (7);")
    assert database.query("SELECT a FROM t") == "a\n7"
    database.close()


@pytest.mark.parametrize("kind", ["bubblewrap", "subprocess"])
def test_pythons(kind: str) -> None:
    if kind == "bubblewrap":
        skip_without("bubblewrap")
    with PythonPool(backend=kind, workers=1) as pool:
        assert pool.run("print(6 * 7)").out == "42\n"
        with Session(pool) as session:
            session.run("a = 3")
            assert session.run("a").execution.out == "3\n"


@pytest.mark.parametrize("make", [BubblewrapSandbox, SubprocessSandbox])
def test_programs(make: type) -> None:
    if make is BubblewrapSandbox:
        skip_without("bubblewrap")
    with contextlib.closing(make()) as sandbox:
        assert sandbox.exec([sandbox.python, "-c", "print(42)"]).out == "42\n"
