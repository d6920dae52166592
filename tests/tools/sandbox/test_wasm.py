"""WebAssembly: (1) a module's output and status arrive; (2) instructions, time and memory are limited; (3) a module
reads only its work folder, and writes only if it may; (4) a command that cannot run is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import Threat, WasmSandbox
from tests.extras import needs

pytestmark = needs("wasmtime")

IMPORTS = """
 (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
 (import "wasi_snapshot_preview1" "path_open"
   (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
"""
PRINT = "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const {size}))"
PRINT += "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))"


def module(body: str, data: str = "", pages: int = 1) -> str:
    content = f'(data (i32.const 64) "{data}")' if data else ""
    return f'(module {IMPORTS} (memory (export "memory") {pages}) {content} (func (export "_start") {body}))'


def opening(path: str, *, flags: int, rights: int) -> str:
    """Exit with the error number of opening a path below the only folder that is given."""
    return (
        f"(call $exit (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const {len(path)})"
        f" (i32.const {flags}) (i64.const {rights}) (i64.const 0) (i32.const 0) (i32.const 32)))"
    )


@pytest.fixture(scope="module")
def sandbox() -> Iterator[WasmSandbox]:
    made = WasmSandbox(max_output=1000)
    yield made
    made.close()


def run(sandbox: WasmSandbox, text: str, **options: object) -> object:
    files = {"m.wat": text, **options.pop("files", {})}
    return sandbox.exec(["m.wat"], files=files, **options)


def test_1_output_and_status(sandbox: WasmSandbox) -> None:
    done = run(sandbox, module(PRINT.format(size=6) + "(call $exit (i32.const 5))", "hello\\n"))
    assert (done.rc, done.out) == (5, "hello\n")
    assert run(sandbox, module("")).ok


def test_2_limits(sandbox: WasmSandbox) -> None:
    loop = module("(loop br 0)")
    fuel = run(sandbox, loop, cpu_s=1, timeout_s=60)
    assert (fuel.killed_by, fuel.timed_out) == ("cpu", True)
    assert run(sandbox, loop, cpu_s=1000, timeout_s=1).killed_by == "time"
    grow = "(call $exit (i32.eq (memory.grow (i32.const 8000)) (i32.const -1)))"
    assert run(sandbox, module(grow), memory_mb=64).rc == 1  # 500 MB are refused
    assert run(sandbox, module(grow), memory_mb=600).rc == 0
    flood = module(f"(loop {PRINT.format(size=1000)} br 0)", "x" * 1000)
    assert run(sandbox, flood, cpu_s=1000, timeout_s=30).killed_by == "output"


GROW = "(drop (table.grow $t{n} (ref.null func) (i32.const 500000)))"
FILL = "(drop (memory.grow $m{n} (i32.const 900)))(memory.fill $m{n} (i32.const 0) (i32.const 1) (i32.const 58000000))"


def test_2_tables_and_memories_together(sandbox: WasmSandbox) -> None:
    """Tables had no limit and grew to 1.4 GB under 64 MB; each of several memories had the whole limit."""
    watched = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if any("wasm_runner" in word for word in child.cmdline()):
                        watched[0] = max(watched[0], child.memory_info().rss >> 20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        tables = "".join(f"(table $t{n} 1 funcref)" for n in range(15))
        grow = "".join(GROW.format(n=n) * 20 for n in range(15))
        assert run(sandbox, module(grow).replace("(memory", f"{tables} (memory"), memory_mb=64).rc == 0
        memories = "".join(f"(memory $m{n} 1)" for n in range(3))
        code = module("".join(FILL.format(n=n) for n in range(3)), pages=1).replace(
            "(func (exp", f"{memories} (func (exp"
        )
        done = run(sandbox, code, memory_mb=64)
        assert done.rc == 134 and "out of bounds memory access" in done.err  # the second one could not grow
    finally:
        ended.set()
        thread.join()
    assert 30 < watched[0] < 64 + 64  # wasmtime and Python themselves take about 40


@pytest.mark.parametrize(
    ("path", "worked"), [("here", True), ("../canary", False), ("/etc/passwd", False), ("link", False)]
)
def test_3_reading(path: str, worked: bool, sandbox: WasmSandbox, tmp_path: Path) -> None:
    done = run(sandbox, module(opening(path, flags=0, rights=2), path), files={"here": "x"})
    assert (done.rc == 0) == worked


def test_3_writing(sandbox: WasmSandbox) -> None:
    make = module(opening("new", flags=1, rights=64), "new")
    assert run(sandbox, make).rc != 0
    writable = WasmSandbox(writable=True)
    assert run(writable, make).rc == 0
    assert set(writable.guarantees().misses) == {Threat.DISK}
    writable.close()


def test_4_refusals(sandbox: WasmSandbox, tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match=r"there is no module 'python'(.|\n)*give `python_wasm`"):
        sandbox.exec(["python", "main.py"])
    with pytest.raises(PalaestraError, match="which is not a file"):
        WasmSandbox(python_wasm=tmp_path / "python.wasm")
    assert "unknown import" in run(sandbox, '(module (import "env" "x" (func)) (func (export "_start")))').err
    (tmp_path / "python.wat").write_text(module(PRINT.format(size=3), "ok\\n"))
    python = WasmSandbox(python_wasm=tmp_path / "python.wat")
    assert python.exec([python.python, "main.py"], files={"main.py": ""}).out == "ok\n"
    python.close()
