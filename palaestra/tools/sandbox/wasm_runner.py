"""Runs one WebAssembly module and ends. `wasm.py` runs this file as a process whose time and output it limits."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
TABLES = 16
COMPILING = 1 << 30  # bytes that the compiler may use
ENTRY = 8  # bytes of one element of a table
MARGIN = 16 << 20  # bytes of the process for its own work beside a module's memory


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. On other systems than Linux, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            sys.exit(1)


def limit(extra: int) -> None:
    """Limit the data of this process to what it has now and `extra` bytes more, on Linux, which counts it.

    The store's limits hold for each memory and table. This one holds for all together and for what wasmtime needs.
    """
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = now + extra
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))


def main(asked: dict[str, object]) -> int:
    """Run the module. Returns its exit status."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.parallel_compilation = False  # each of its threads would have an arena of its own
    config.wasm_threads = False  # shared memories have no limit
    engine = wasmtime.Engine(config)
    store = wasmtime.Store(engine)
    store.set_fuel(asked["fuel"])
    memory = int(str(asked["memory"]))
    store.set_limits(
        memory_size=memory, table_elements=memory // ENTRY // TABLES, instances=4, tables=TABLES, memories=4
    )
    wasi = wasmtime.WasiConfig()
    wasi.argv = asked["argv"]
    wasi.inherit_stdin()
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    wasi.preopen_dir(asked["folder"], "/", fs_mutable=asked["writable"])
    store.set_wasi(wasi)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    try:
        with open(str(asked["module"]), "rb") as source:
            content = source.read()
        limit(COMPILING)
        module = wasmtime.Module(engine, content if content[:4] == b"\0asm" else content.decode())
        limit(memory + MARGIN)
        linker.instantiate(store, module).exports(store)["_start"](store)
    except wasmtime.ExitTrap as stop:
        return int(stop.code)
    except (wasmtime.WasmtimeError, wasmtime.Trap) as fault:
        print(fault, file=sys.stderr)
        return 134
    return 0


if __name__ == "__main__":
    end_with(int(sys.argv[2]))
    sys.exit(main(json.loads(sys.argv[1])))
