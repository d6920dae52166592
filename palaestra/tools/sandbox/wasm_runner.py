"""Runs one WebAssembly module and ends. `wasm.py` runs this file as a process whose time and output it limits."""

from __future__ import annotations

import json
import sys


def main(asked: dict[str, object]) -> int:
    """Run the module. Returns its exit status."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    engine = wasmtime.Engine(config)
    store = wasmtime.Store(engine)
    store.set_fuel(asked["fuel"])
    store.set_limits(memory_size=asked["memory"], instances=4, tables=16, memories=4)
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
        module = wasmtime.Module(engine, content if content[:4] == b"\0asm" else content.decode())
        linker.instantiate(store, module).exports(store)["_start"](store)
    except wasmtime.ExitTrap as stop:
        return int(stop.code)
    except (wasmtime.WasmtimeError, wasmtime.Trap) as fault:
        print(fault, file=sys.stderr)
        return 134
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
