"""The pool of Pythons: (1) a program runs as `python main.py` would; (2) calls share nothing, even many at once; (3) a
dead server is replaced, its calls report it, and its sessions are lost at once; (4) 200 sessions leave no process,
descriptor or folder; (5) sessions keep variables, even after a killed piece, and their number is limited;
(6) cancelling kills; (7) wrong options are refused; (8) a session that gives a false answer is ended.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import PythonPool, Session
from palaestra.tools.sandbox.living import told_files
from tests.extras import skip_without

KINDS = ("bubblewrap", "subprocess")


def make(kind: str, **options: object) -> PythonPool:
    if kind == "bubblewrap":
        skip_without("bubblewrap")
    return PythonPool(**{"backend": kind, "workers": 2, "disk_mb": 4, **options})


@pytest.fixture(scope="module", params=KINDS)
def pool(request: pytest.FixtureRequest) -> Iterator[PythonPool]:
    with make(request.param) as made:
        yield made


def below(pid: int) -> set[int]:
    """All processes that descend from this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def test_1_as_a_program(pool: PythonPool) -> None:
    code = "import sys, os\nfrom helper import one\nprint(__name__, sys.argv, input(), one, sorted(os.listdir('.')))"
    done = pool.run(code, stdin="line\n", files={"helper.py": "one = 1"}, argv=["a b"])
    assert done.out == "__main__ ['main.py', 'a b'] line 1 ['helper.py']\n"
    assert done.rc == 0
    failed = pool.run("def f():\n    raise KeyError('k')\nf()")
    assert failed.rc == 1
    assert failed.err.splitlines()[0] == "Traceback (most recent call last):"
    assert failed.err.splitlines()[1:3] == ['  File "main.py", line 3, in <module>', "    f()"]
    assert failed.err.endswith("KeyError: 'k'\n")
    assert pool.run("import sys; sys.exit(7)").rc == 7
    assert pool.run("import atexit; atexit.register(print, 'bye'); print('x', end='')").out == "xbye\n"
    assert "SyntaxError" in pool.run("1 +").err
    threads = "import threading\nt = threading.Thread(target=lambda: print('t'))\nt.start()"
    assert pool.run(threads).out == "t\n"
    assert (
        pool.run("import subprocess\nprint(subprocess.run(['echo', 'sub'], capture_output=True).stdout)").out
        == "b'sub\\n'\n"
    )


def test_2_many_at_once(pool: PythonPool) -> None:
    code = "import os\nopen('f', 'x').write('x')\nprint({n}, os.listdir('.'))"
    with ThreadPoolExecutor(16) as threads:
        outs = list(threads.map(lambda n: pool.run(code.replace("{n}", str(n))).out, range(64)))
    assert outs == [f"{n} ['f']\n" for n in range(64)]

    async def all_of_them() -> list[str]:
        return [done.out for done in await asyncio.gather(*[pool.arun(f"print({n})") for n in range(32)])]

    assert asyncio.run(all_of_them()) == [f"{n}\n" for n in range(32)]
    assert {server.load for server in pool._servers} == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_3_dead_servers(kind: str) -> None:
    with make(kind, workers=1) as pool:
        old = pool._servers[0].process
        told: list[object] = []
        thread = threading.Thread(target=lambda: told.append(pool.run("import time; time.sleep(20)", timeout_s=30)))
        thread.start()
        time.sleep(0.5)
        old.kill()
        thread.join(timeout=25)
        assert told[0].killed_by == "worker" and "it is replaced" in told[0].err
        assert pool.run("print(1)").out == "1\n"
        assert pool._servers[0].process.pid != old.pid
        pool._servers[0].process.kill()
        pool._servers[0].process.wait()
        assert pool.run("print(2)").out == "2\n"  # dead while idle: found out, replaced, run once


@pytest.mark.parametrize("kind", KINDS)
def test_3_sessions_of_dead_servers(kind: str) -> None:
    with make(kind, workers=1) as pool, Session(pool) as session, Session(pool) as other:
        session.run("x = 1")
        other.run("x = 1")
        pool._servers[0].process.kill()
        pool._servers[0].process.wait()  # its sessions may still answer, without namespaces for ever
        gone = session.run("x")
        assert (gone.state, gone.execution.killed_by) == ("lost", "worker")
        with pytest.raises(PalaestraError, match="gave no list of its files"):
            other.files()
        assert "NameError" in session.run("x").execution.err
        assert "NameError" in other.run("x").execution.err


@pytest.mark.parametrize("kind", KINDS)
def test_4_nothing_is_left(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # folders of other processes are not counted
    make(kind, workers=1).close()
    fds = len(os.listdir("/proc/self/fd"))
    before = set(below(os.getpid()))  # other tests may share pools that live as long as the process
    with make(kind, sessions=200) as pool:
        for n in range(30):
            pool.run(f"print({n})")
        sessions = [Session(pool) for _ in range(200)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda pair: pair[1].run(f"n = {pair[0]}"), enumerate(sessions)))
            outs = list(threads.map(lambda session: session.run("n").execution.out, sessions))
        assert outs == [f"{n}\n" for n in range(200)]
        with pytest.raises(PalaestraError, match="all 200 sessions are in use"):
            Session(pool)
        for session in sessions[:100]:
            session.close()
        Session(pool).close()
        waiting = time.monotonic() + 20
        while len(set(below(os.getpid())) - before) > 220 and time.monotonic() < waiting:
            time.sleep(0.05)
        assert len(set(below(os.getpid())) - before) <= 220  # two for each living session, and the servers
    with pytest.raises(PalaestraError, match="the session is closed"):
        sessions[-1].run("n")
    assert len(os.listdir("/proc/self/fd")) <= fds  # fewer, if files of earlier tests were closed meanwhile
    waiting = time.monotonic() + 20
    while list(tmp_path.glob("palaestra-*")) and time.monotonic() < waiting:
        time.sleep(0.05)
    assert not list(tmp_path.glob("palaestra-*"))
    new = set(below(os.getpid())) - before
    assert not [pid for pid in new if b"serve.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_5_sessions(pool: PythonPool) -> None:
    with Session(pool, files={"a": "1"}) as session:
        first = session.run("x = int(open('a').read())\nx")
        assert (first.execution.out, first.state) == ("1\n", "kept")
        assert session.run("x += 1\n1 / 0").state == "kept"
        assert session.run("x").execution.out == "2\n"
        slow = session.run("x = 9\nwhile True: pass", timeout_s=0.5)
        assert (slow.state, slow.execution.killed_by, slow.execution.timed_out) == ("before", "time", True)
        assert session.run("import os; os._exit(3)").state == "before"
        assert session.run("y = bytearray(8 << 30)").execution.oom
        flood = session.run("while True: print('z' * 10000)", timeout_s=0.5)
        assert (flood.state, flood.execution.truncated) == ("before", True)
        assert session.run("x").execution.out == "2\n"
        assert session.run("open('b/c', 'w') if 0 else 1", files={"b/c": "2"}).execution.out == "1\n"
        assert session.files() == {"a": b"1", "b/c": b"2"}
    session.close()


def test_6_cancelling(pool: PythonPool) -> None:
    async def cancelled(session: Session) -> None:
        for waits in (pool.arun("import time; time.sleep(30)"), session.arun("import time; time.sleep(30)")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waits, timeout=0.3)

    with Session(pool) as session:
        session.run("x = 1")
        begun = time.monotonic()
        asyncio.run(cancelled(session))
        assert time.monotonic() - begun < 10
        assert "NameError" in session.run("x").execution.err  # it was given up, so it starts anew


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "`workers` is 0"),
        ({"sessions": 0}, "`sessions` is 0"),
        ({"total_mb": 0}, "`total_mb` is 0"),
        ({"backend": "docker"}, "it has no back end `docker`"),
        ({"preload": ["no_such_module"]}, "No module named 'no_such_module'"),
    ],
)
def test_7_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(PalaestraError, match=message):
        make("subprocess", **{"backend": "subprocess", **options})


def test_8_lies(pool: PythonPool) -> None:
    lie = "import os, struct\nfor n in range(3, 30):\n    try: os.write(n, {})\n    except OSError: pass\n"
    with Session(pool) as session:
        for words in ("b'garbage!' * 9", "struct.pack('=Q', 1 << 60)", "struct.pack('=Q', 2) + b'[]'"):
            session.run(lie.format(words), timeout_s=2)
            done = session.run("1", timeout_s=2)
            if done.state == "lost":
                done = session.run("1", timeout_s=2)
            assert done.execution.out == "1\n"
    for reply in ({}, {"files": []}, {"files": {"../x": ""}}, {"files": {"a": "?"}}, {"files": {"a": "eHh4"}}, None):
        assert told_files(reply, most=2) is None
    assert told_files({"files": {"a": "eA=="}}, most=2) == {"a": b"x"}
