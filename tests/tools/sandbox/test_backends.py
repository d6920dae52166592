"""Rules for every back end that runs any program: (1) output, input, files and status arrive; (2) bytes that are not
UTF-8 and bytes that were cut are visible; (3) the result names the limit that ended it; (4) executions are independent
and may run at once, also from an event loop; (5) cancelling kills; (6) wrong arguments are refused; (7) programs see no
environment variable of the host; (8) closing ends what runs, and nothing is left open.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import BubblewrapSandbox, Sandbox, SubprocessSandbox
from tests.extras import skip_without

MAKE = {"bubblewrap": BubblewrapSandbox, "subprocess": SubprocessSandbox}


@pytest.fixture(scope="module", params=list(MAKE))
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param == "bubblewrap":
        skip_without("bubblewrap")
    made = MAKE[request.param](max_output=1000, disk_mb=4)
    yield made
    made.close()


def python(sandbox: Sandbox, code: str) -> list[str]:
    return [sandbox.python, "-I", "-S", "-c", code]


def test_1_all_arrives(sandbox: Sandbox) -> None:
    code = "import sys\nprint(open('d/a').read(), sys.stdin.read(), sys.argv[1:])\n"
    code += "print('e', file=sys.stderr)\nsys.exit(3)"
    done = sandbox.exec([*python(sandbox, code), "x y", "$z"], stdin="in ü", files={"d/a": "text ü", "b": b"\0"})
    assert (done.rc, done.out, done.err) == (3, "text ü in ü ['x y', '$z']\n", "e\n")
    assert not (done.ok or done.timed_out or done.oom or done.killed_by or done.truncated)
    assert sandbox.exec(["true"]).ok
    assert sandbox.exec(["sh", "-c", "head -c 3"], stdin="x" * 1_000_000).out == "xxx"  # the rest is not read: no fault


def test_2_strange_output_is_visible(sandbox: Sandbox) -> None:
    assert sandbox.exec(["sh", "-c", r"printf 'a\377b'"]).out == "a�b"
    done = sandbox.exec(["sh", "-c", "head -c 3000 /dev/zero | tr '\\0' x"])
    assert done.out == "x" * 1000 + "\n… 2000 more bytes were dropped"
    assert done.truncated and done.rc == 0


def test_3_limits_name_themselves(sandbox: Sandbox) -> None:
    slow = sandbox.exec(["sh", "-c", "echo begun; sleep 20"], timeout_s=0.5)
    assert (slow.rc, slow.out, slow.timed_out, slow.killed_by) == (None, "begun\n", True, "time")
    busy = sandbox.exec(python(sandbox, "while True: pass"), cpu_s=1, timeout_s=60)
    assert (busy.timed_out, busy.killed_by) == (True, "cpu")
    large = sandbox.exec(python(sandbox, "x = bytearray(1 << 30)"), memory_mb=100)
    assert large.oom and "MemoryError" in large.err
    flood = sandbox.exec(["sh", "-c", "yes"], timeout_s=30)
    assert (flood.killed_by, flood.rc, len(flood.out) < 1100) == ("output", None, True)
    hit = sandbox.exec(["sh", "-c", "kill -SEGV $$"])
    assert (hit.rc, hit.killed_by) == (-11, "signal")
    missing = sandbox.exec(["no-such-program"])
    assert missing.rc == 127 and missing.err
    full = sandbox.exec(python(sandbox, "open('f', 'wb').write(bytes(9 << 20))"))
    assert full.rc != 0


def test_4_many_at_once(sandbox: Sandbox) -> None:
    command = ["sh", "-c", 'cat name; ls | wc -l; echo "$1" > made', "sh"]
    with ThreadPoolExecutor(8) as threads:
        outs = list(threads.map(lambda n: sandbox.exec([*command, str(n)], files={"name": f"{n}\n"}).out, range(24)))
    assert [out.split() for out in outs] == [[str(n), "1"] for n in range(24)]

    async def all_of_them() -> list[str]:
        runs = [sandbox.aexec(["sh", "-c", f"sleep 0.3; echo {n}"], timeout_s=30) for n in range(12)]
        return [done.out for done in await asyncio.gather(*runs)]

    assert asyncio.run(all_of_them()) == [f"{n}\n" for n in range(12)]


def test_5_cancelling_kills(sandbox: Sandbox) -> None:
    async def cancelled() -> float:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.aexec(["sleep", "31.7"], timeout_s=60), timeout=0.3)
        return time.monotonic() - begun

    assert asyncio.run(cancelled()) < 10
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _reads(path, b"sleep\x0031.7\x00")]


def _reads(path: Path, text: bytes) -> bool:
    try:
        return text == path.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("ls", {}, "the command is 'ls'"),
        ([], {}, r"the command is \[\]"),
        (["a\0b"], {}, "contains a zero byte"),
        (["ls"], {"network": "all"}, "`network` is 'all'"),
        (["ls"], {"timeout_s": 0}, "`timeout_s` is 0"),
        (["ls"], {"timeout_s": float("inf")}, "`timeout_s` is inf"),
        (["ls"], {"cpu_s": -1}, "`cpu_s` is -1"),
        (["ls"], {"memory_mb": 8}, "`memory_mb` is 8"),
        (["ls"], {"files": {"../x": ""}}, r"the file '\.\./x' is not inside the work folder"),
        (["ls"], {"files": {"/x": ""}}, "the file '/x' is not inside"),
        (["ls"], {"files": {"a": "", "a/b": ""}}, "'a' is a file, so 'a/b' cannot be in it"),
        (["ls"], {"files": {"a": "x" * (5 << 20)}}, "the files have 5242880 bytes"),
    ],
)
def test_6_wrong_arguments(command: list[str], options: dict[str, object], message: str, sandbox: Sandbox) -> None:
    with pytest.raises(PalaestraError, match=message):
        sandbox.exec(command, **options)


@pytest.mark.parametrize("name", ["max_output", "disk_mb", "processes"])
def test_6_wrong_bounds(name: str) -> None:
    with pytest.raises(PalaestraError, match=f"`{name}` is 0"):
        BubblewrapSandbox(**{name: 0})


def test_7_a_clean_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    shown = sandbox.exec(["env"]).out
    assert "secret" not in shown
    assert "USER=agent" in shown and "PYTHONHASHSEED=0" in shown


@pytest.mark.parametrize("name", list(MAKE))
def test_8_closing(name: str) -> None:
    if name == "bubblewrap":
        skip_without("bubblewrap")
    MAKE[name]().close()  # what is made once for the process is made
    before = len(os.listdir("/proc/self/fd"))
    sandbox = MAKE[name]()
    ended: list[float] = []
    begun = time.monotonic()
    thread = threading.Thread(
        target=lambda: (sandbox.exec(["sleep", "30"], timeout_s=60), ended.append(time.monotonic() - begun))
    )
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join(timeout=20)
    assert ended and ended[0] < 20
    with pytest.raises(PalaestraError, match="the sandbox is closed"):
        sandbox.exec(["true"])
    assert len(os.listdir("/proc/self/fd")) == before
