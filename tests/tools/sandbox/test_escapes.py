"""Every claim of every back end is tried: (1) each threat in `stops` is stopped; (2) each threat in `misses` succeeds,
or trying it would harm the machine; (3) after an attack, no process, file or control group is left; (4) code that
signals, kills or deceives the processes around it harms only itself.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palaestra.tools.sandbox import (
    BubblewrapSandbox,
    Execution,
    Guarantees,
    PythonPool,
    Session,
    SubprocessSandbox,
    Threat,
)
from palaestra.tools.sandbox.cgroups import PREFIX, writable_groups
from tests.extras import skip_without
from tests.tools.sandbox.attacks import SECRET, Host, code, host

Run = Callable[..., Execution]
HARMFUL = {
    Threat.MEMORY_KERNEL: "how much the kernel holds depends on the machine",
    Threat.FORK_BOMB: "without a limit it would take the machine down",
    Threat.NAMESPACE: "whether a plain user may do this depends on the machine",
}
KINDS = ("bubblewrap", "call", "session", "subprocess")
WEAKER = ("bubblewrap-ungrouped", "plain-call", "plain-session")  # the same ways without groups, without isolation
DISK, TOTAL = 8, 300  # megabytes


@pytest.fixture(scope="module", params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in WEAKER)])
def contender(request: pytest.FixtureRequest) -> Iterator[tuple[Run, Guarantees]]:
    """A way to run Python code, and what it claims."""
    kind: str = request.param
    if kind not in ("subprocess", "plain-call", "plain-session"):
        skip_without("bubblewrap")
    if kind in ("bubblewrap", "bubblewrap-ungrouped", "subprocess"):
        make = SubprocessSandbox if kind == "subprocess" else BubblewrapSandbox
        options = {"groups": False} if kind == "bubblewrap-ungrouped" else {}
        sandbox = make(disk_mb=DISK, **options)
        yield (
            lambda text, **limits: sandbox.exec([sandbox.python, "main.py"], files={"main.py": text}, **limits),
            sandbox.guarantees(),
        )
        sandbox.close()
        return
    backend = "subprocess" if kind.startswith("plain") else "bubblewrap"
    with PythonPool(backend=backend, workers=1, disk_mb=DISK, total_mb=TOTAL) as pool:

        def in_session(text: str, *, timeout_s: float = 10.0, cpu_s: float = 60, memory_mb: int = 512) -> Execution:
            with Session(pool, memory_mb=memory_mb, cpu_s=cpu_s) as session:
                return session.run(text, timeout_s=timeout_s).execution

        yield in_session if kind.endswith("session") else pool.run, pool.guarantees()


@pytest.fixture
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    with host(folder) as made:
        yield made


LIMITS = {
    Threat.ENDLESS: {"timeout_s": 1},
    Threat.BUSY: {"timeout_s": 60, "cpu_s": 1},
    Threat.MEMORY_FILES: {"memory_mb": 128, "timeout_s": 30},
    Threat.MEMORY_KERNEL: {"memory_mb": 128, "timeout_s": 30},
    Threat.MEMORY_TOTAL: {"memory_mb": TOTAL - DISK, "timeout_s": 30},
    Threat.FORK_BOMB: {"timeout_s": 2},
    Threat.OUTPUT: {"timeout_s": 3},
}


def escaped(threat: Threat, done: Execution, it: Host) -> bool:
    """Whether the program got what it wanted."""
    match threat:
        case Threat.ENDLESS:
            return not done.timed_out or done.seconds > 10
        case Threat.BUSY:
            return done.killed_by != "cpu"
        case Threat.OUTPUT:
            return done.killed_by not in ("output", "time") or not done.truncated or len(done.out) > 70_000
        case Threat.WRITE_HOST | Threat.SYMLINK:
            found = [it.folder / "open" / "written", Path(f"/usr/written-{it.mark}"), Path(f"/etc/written-{it.mark}")]
            written = [path for path in found if path.exists()]
            for path in written:
                path.unlink()
            return bool(written) or "ESCAPED" in done.out
        case Threat.DAEMON:
            left = it.left_behind()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return bool(left)
        case Threat.SIGNAL:
            return it.victim.poll() is not None or "ESCAPED" in done.out
        case Threat.NETWORK:
            return it.visits > 0 or "ESCAPED" in done.out
        case Threat.READ_HOST:
            return SECRET in done.out or "ESCAPED" in done.out
    return "ESCAPED" in done.out


@pytest.mark.parametrize("threat", list(Threat))
def test_claims_hold(threat: Threat, contender: tuple[Run, Guarantees], it: Host) -> None:  # rules 1, 2
    run, claims = contender
    if threat in claims.misses and threat in HARMFUL:
        pytest.skip(f"{claims.misses[threat]}; {HARMFUL[threat]}")
    done = run(code(threat, it), **LIMITS.get(threat, {}))
    tried = done.out + done.err
    if threat in claims.stops:
        assert not escaped(threat, done, it), (claims.backend, threat, done)
        if threat not in (Threat.OUTPUT, Threat.ENDLESS, Threat.BUSY):
            assert tried or done.killed_by or done.rc, f"the attack did not run: {done}"
    else:
        assert escaped(threat, done, it), (claims.misses[threat], done)


def groups_of_this_process() -> set[Path]:
    """The control groups that were made here: also those of pools that other tests share."""
    groups = writable_groups()
    return {path for parent in groups.parents for path in parent.glob(f"{PREFIX}{os.getpid()}-*")} if groups else set()


def test_nothing_is_left(
    contender: tuple[Run, Guarantees], it: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 3
    run, _ = contender
    run("print(1)")  # what a pool keeps while it lives is there now
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # folders of other processes are not counted
    before = groups_of_this_process()
    for threat in (Threat.ENDLESS, Threat.DISK, Threat.MEMORY):
        run(code(threat, it), timeout_s=1)
    waiting = time.monotonic() + 20
    while len(list(tmp_path.glob("palaestra-*"))) > 2 and time.monotonic() < waiting:
        time.sleep(0.05)
    assert (
        len(list(tmp_path.glob("palaestra-*"))) <= 2
    )  # a server that was replaced has a folder and a group of its own
    assert len(groups_of_this_process() - before) <= 4


def test_killing_everybody_reaches_nobody(contender: tuple[Run, Guarantees], it: Host) -> None:  # rule 4
    run, claims = contender
    if claims.isolation == "none":
        pytest.skip("without isolation this would kill the tests")
    run("import os\nos.kill(-1, 15)\nos.kill(1, 9)\nos.kill(-1, 9)", timeout_s=3)
    assert it.victim.poll() is None
    assert run("print('alive')").out == "alive\n"


@pytest.mark.parametrize(
    "text", ["import os\nos.kill(os.getppid(), 9)", "import os\nos.closerange(0, 4096)\nwhile 1: pass"]
)
def test_harm_stays_with_the_program(text: str, contender: tuple[Run, Guarantees]) -> None:  # rule 4
    run, claims = contender
    if claims.isolation == "none" and "getppid" in text:
        pytest.skip("without isolation its parent is the test")
    done = run(text, timeout_s=1)
    assert done.seconds < 10
    assert run("print('alive')").out == "alive\n"


def test_calls_do_not_see_each_other() -> None:  # rule 4
    skip_without("bubblewrap")
    look = "import os\nprint(sorted(os.listdir('.')), os.path.exists('/tmp/mine'), 'leak' in globals())"
    with PythonPool(workers=1) as pool:
        pool.run("leak = 1\nopen('mine', 'w').write('x')\nopen('/tmp/mine', 'w').write('x')\n__builtins__.leak = 1")
        assert pool.run(look).out == "[] False False\n"
        with Session(pool) as first, Session(pool) as second:
            first.run("import socket, os\nopen('mine', 'w').write('x')\ns = socket.create_server(('127.0.0.1', 0))"
                      "\nif os.fork() == 0:\n    while True: s.accept()")  # fmt: skip
            seen = second.run(
                "import os\nnames = [n for n in os.listdir('/proc') if n.isdigit()]\nlen(names), os.listdir('.')"
            )
            assert seen.execution.out == "(3, [])\n"  # the keeper, the head and this piece
            assert first.run("os.listdir('.')").execution.out == "['mine']\n"
