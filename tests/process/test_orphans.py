"""Processes that must not outlive others: (1) the kernel kills a process that hangs when the other end of its pipe is
closed, or was closed before, and not while it is open; (2) a guard ends a group, by SIGTERM or by SIGKILL, when the
process that uses it is killed; (3) a guard that is dismissed ends nothing; (4) a guard that somebody has killed does no
harm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from palaestra.process.orphans import Guard

ROOT = Path(__file__).parents[1]
HANGS = """
import ctypes, signal, sys
from palaestra.process.orphans import killed_with
killed_with(int(sys.argv[1]))
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("hangs", flush=True)
ctypes.PyDLL(None).sleep(60)
"""
GUARDS = """
import subprocess, sys, time
from palaestra.process.orphans import Guard
with Guard(grace_s=0.4) as guard:
    group = subprocess.Popen(["/bin/sh", "-c", sys.argv[1]], start_new_session=True)
    guard.watch(group.pid)
    print("watched", flush=True)
    time.sleep(60)
"""
STUBBORN = "trap '' TERM; sleep 61 & echo $! $$; wait"
TIDY = "trap 'rm begun; exit' TERM; touch begun; sleep 61 & echo $! $$; wait"


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options
    )


def wait_for_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so many seconds."""
    began = time.monotonic()
    while left := [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        if time.monotonic() - began > seconds:
            break
        time.sleep(0.02)
    return left


@contextmanager
def hanging() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that hangs, and the writing end of its pipe."""
    reading, writing = os.pipe()
    with python(HANGS, reading, pass_fds=(reading,)) as process:
        os.close(reading)
        try:
            yield process, writing
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can send SIGKILL when a pipe closes")
def test_1_a_process_that_hangs() -> None:
    with hanging() as (process, writing):
        assert process.stdout and process.stdout.readline() == "hangs\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        os.close(writing)
        assert process.wait(5) == -signal.SIGKILL
    with hanging() as (process, writing):
        os.close(writing)
        assert process.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("program", [STUBBORN, TIDY])
def test_2_a_group(program: str, tmp_path: Path) -> None:
    with python(GUARDS, program, cwd=tmp_path) as parent:
        assert parent.stdout
        said = f"{parent.stdout.readline()} {parent.stdout.readline()}".split()
        group = [psutil.Process(int(word)) for word in said if word != "watched"]
        (guard,) = [one for one in psutil.Process(parent.pid).children() if one not in group]
        parent.kill()
    assert len(group) == 2 and not wait_for_end([*group, guard], 5)
    assert not (tmp_path / "begun").exists()


def test_3_dismissed() -> None:
    with subprocess.Popen(["sleep", "62"], start_new_session=True) as process:
        with Guard(grace_s=0.0) as guard:
            guard.watch(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.kill()


def test_4_killed_itself() -> None:
    with Guard(grace_s=0.0) as guard:
        guard._shell.kill()
        guard._shell.wait()
        guard.watch(os.getpid())
