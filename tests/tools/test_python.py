"""Rules: (1) variables last for an episode; printed text and the last value are shown; (2) errors are short and are
faults; (3) a time-out brings back the variables of before and says so; (4) a lost session starts anew and says so,
whether the loss shows when code runs or when its files are read; (5) long output is cut visibly; (6) files are copied
to and from the work folder; (7) two episodes share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from palaestra.data import ToolCall
from palaestra.errors import PalaestraError
from palaestra.tools import PythonTool, Toolbox, ToolError, ToolResult, WorkFolder
from palaestra.tools.python import cut, short_traceback
from palaestra.tools.sandbox import PythonPool, Session
from tests.extras import skip_without


@pytest.fixture(scope="module", params=["bubblewrap", "subprocess"])
def pool(request: pytest.FixtureRequest) -> Iterator[PythonPool]:
    if request.param == "bubblewrap":
        skip_without("bubblewrap")
    with PythonPool(backend=request.param, workers=1, disk_mb=8) as made:
        yield made


@pytest.fixture
def folder() -> Iterator[WorkFolder]:
    with WorkFolder({"data.txt": "7"}, max_kb=64) as made:
        yield made


@pytest.fixture
def python(pool: PythonPool, folder: WorkFolder) -> Iterator[PythonTool]:
    with PythonTool(pool, folder=folder, timeout_s=1, max_chars=400) as made:
        yield made


def call(python: PythonTool, code: str) -> ToolResult:
    return Toolbox([python.tool]).call(ToolCall(name="python", arguments={"code": code}))


def kill(pool: PythonPool) -> None:
    """End the servers, as a fault of the machine would."""
    for server in pool._servers:
        server.process.kill()
        server.process.wait()


def test_1_variables_last(python: PythonTool) -> None:
    assert call(python, "import math\nx = 3\nprint('hi')\nmath.sqrt(x + 1)").text == "hi\n2.0"
    assert call(python, "def f(n):\n    return n * x\nf(2)").text == "6"
    assert call(python, "y = f(3)").text == "(no output)"
    assert call(python, "y").text == "9"
    assert call(python, "None").text == "(no output)"


def test_2_errors(python: PythonTool) -> None:
    call(python, "x = 3")
    done = call(python, "x = 4\nx / 0")
    assert (done.ok, done.fault) == (False, "raised")
    assert done.text.startswith('error: Traceback (most recent call last):\n  File "main.py", line 2, in <module>\n')
    assert done.text.endswith("ZeroDivisionError: division by zero")
    assert "serve.py" not in done.text and "inside.py" not in done.text
    assert call(python, "x").text == "4"
    assert "SyntaxError" in call(python, "1 +").text
    assert len(call(python, "def f(n): return f(n - 1)\nf(1)").text.splitlines()) <= 13
    assert call(python, "exit('enough')").text == "error: enough"


def test_3_time_outs(python: PythonTool) -> None:
    call(python, "x = [1]")
    done = call(python, "x.append(2)\nopen('kept.txt', 'w').write('x')\nprint('begun')\nwhile True: pass")
    assert done.fault == "timeout"
    assert done.text == (
        "error: begun\nstopped after 1 s; variables are as before this code; files keep what was written"
    )
    assert call(python, "x, open('kept.txt').read()").text == "([1], 'x')"
    stubborn = "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True:\n"
    stubborn += "  try: pass\n  except BaseException: pass"
    assert call(python, stubborn).fault == "timeout"
    assert call(python, "x").text == "[1]"


def test_4_lost_sessions(pool: PythonPool, python: PythonTool) -> None:
    call(python, "x = 1")
    assert "variables are as before" in call(python, "import os\nos._exit(1)").text
    assert call(python, "x").text == "1"
    kill(pool)
    done = call(python, "x")
    assert done.fault == "died"
    assert "Python starts anew" in done.text
    assert "NameError" in call(python, "x").text
    assert call(python, "open('data.txt').read()").text == "'7'"  # files come back from the work folder


def test_4_a_session_lost_before_its_files_are_read(
    pool: PythonPool, python: PythonTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Session.files

    def files(session: Session, **options: Any) -> dict[str, bytes]:
        kill(pool)
        return plain(session, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "files", files)
        done = call(python, "x = 1\nprint('done')")
    assert (done.ok, done.fault) == (False, "died")
    assert done.text.startswith("error: done\n") and "Python starts anew" in done.text
    assert "NameError" in call(python, "x").text
    assert call(python, "open('data.txt').read()").text == "'7'"


def test_5_long_output(python: PythonTool) -> None:
    shown = call(python, "print('a' * 1000 + 'z')").text
    assert shown.startswith("a" * 266) and shown.endswith("z")
    assert "… 602 characters left out …" in shown
    assert cut("x" * 400, 400) == "x" * 400
    assert short_traceback("\n".join(map(str, range(20)))).splitlines()[:3] == ["0", "… 9 lines left out …", "10"]
    with pytest.raises(PalaestraError, match="`max_chars` is 99"):
        PythonTool(python._session._pool, max_chars=99)


def test_6_files_are_shared(python: PythonTool, folder: WorkFolder) -> None:
    assert call(python, "int(open('data.txt').read())").text == "7"
    folder.write("data.txt", "8")
    assert call(python, "open('data.txt').read()").text == "'8'"
    call(python, "import os\nos.mkdir('d')\nopen('d/new.txt', 'w').write('made')\nos.remove('data.txt')")
    assert folder.contents() == {"d/new.txt": b"made"}
    call(python, "os.symlink('/etc/passwd', 'link')")
    assert list(folder.sizes()) == ["d/new.txt"]
    assert "64 kB; 'big' does not fit" in call(python, "open('big', 'w').write('x' * 100_000)").text
    assert list(folder.sizes()) == ["d/new.txt"]


def test_7_episodes_share_nothing(pool: PythonPool) -> None:
    with PythonTool(pool) as one, PythonTool(pool) as other:
        one.run("x = 1\nopen('mine', 'w').write('x')\nimport math\nmath.pi = 3")
        with pytest.raises(ToolError, match="NameError"):
            other.run("x")
        assert other.run("import os, math\nos.listdir('.'), math.pi > 3") == "([], True)"
