"""After SIGKILL of the process that uses a sandbox: (1) no program of it runs on, not even a sleeping WebAssembly
module; (2) the next process removes control groups and folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from palaestra.tools import temporary
from palaestra.tools.sandbox import cgroups
from palaestra.tools.sandbox.cgroups import writable_groups
from tests.extras import needs, skip_without

NAP = """(module
 (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
 (memory (export "memory") 1)
 (func (export "_start")
  (i32.store (i32.const 16) (i32.const 1)) (i64.store (i32.const 24) (i64.const 60000000000))
  (drop (call $poll (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 200)))))"""
START = "from palaestra.tools.sandbox import *\nprint('begun', flush=True)\n"
SLEEP = "import time; time.sleep(60)"
KINDS = {
    "wasmtime": f"WasmSandbox().exec(['m.wat'], files={{'m.wat': {NAP!r}}}, timeout_s=60)",
    "subprocess": f"s = SubprocessSandbox()\ns.exec([s.python, '-c', {SLEEP!r}], timeout_s=60)",
    "bubblewrap": f"s = BubblewrapSandbox()\ns.exec([s.python, '-c', {SLEEP!r}], timeout_s=60)",
    "call": f"PythonPool(workers=1).run({SLEEP!r}, timeout_s=60)",
    "plain-call": f"PythonPool(backend='subprocess', workers=1).run({SLEEP!r}, timeout_s=60)",
    "session": f"Session(PythonPool(workers=1)).run({SLEEP!r}, timeout_s=60)",
    "plain-session": f"Session(PythonPool(backend='subprocess', workers=1)).run({SLEEP!r}, timeout_s=60)",
}
MARKS: dict[str, Any] = {"wasmtime": [needs("wasmtime"), pytest.mark.slow], "bubblewrap": (), "session": ()}


def groups_of(pid: int) -> list[Path]:
    groups = writable_groups()
    return [path for parent in groups.parents for path in parent.glob(f"palaestra-box-{pid}-*")] if groups else []


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != "zombie":
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize("kind", [pytest.param(k, marks=MARKS.get(k, pytest.mark.slow)) for k in KINDS])
def test_nothing_is_left(kind: str, tmp_path: Path) -> None:  # rules 1 and 2
    """The sleeping module, the plain command, folders and control groups stayed."""
    if kind in ("bubblewrap", "call", "session"):
        skip_without("bubblewrap")
    if kind == "subprocess":  # without it a plain command outlives a killed parent
        skip_without("setpriv")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", START + KINDS[kind]], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout and parent.stdout.readline() == b"begun\n"
        time.sleep(2.0)  # until the program sleeps
        started = psutil.Process(parent.pid).children(recursive=True)
        assert living(started)
        parent.send_signal(signal.SIGKILL)
    waiting = time.monotonic() + 10
    while living(started) and time.monotonic() < waiting:
        time.sleep(0.05)
    assert not living(started)
    if groups := writable_groups():
        cgroups.sweep(groups)
    assert not groups_of(parent.pid)
    temporary.sweep(str(tmp_path))
    assert not list(tmp_path.glob("palaestra-*"))
