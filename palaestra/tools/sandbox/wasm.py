"""The back end that runs WebAssembly modules, with counted instructions and limited memory.

A module can use only what it is given. `wasm_runner.py` runs it in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from palaestra.errors import PalaestraError, missing_extra
from palaestra.tools.sandbox.limits import Bounds, Job, job, write_files
from palaestra.tools.sandbox.processes import Live, clean_environment, execution, supervise
from palaestra.tools.sandbox.protocol import Execution, Guarantees, Threat
from palaestra.tools.sandbox.watching import in_thread
from palaestra.tools.temporary import TemporaryFolder

RUNNER = Path(__file__).with_name("wasm_runner.py")
INSTRUCTIONS = 200_000_000  # fuel for one second of processor time: about what a core executes


class WasmSandbox:
    """Runs WebAssembly modules (WASI) with counted instructions and limited memory. It needs no privilege.

    The first word of a command is `python`, if `python_wasm` is given, or the name of a module among `files`, or the
    path of a module on the host. The work folder is at `/`, read-only unless `writable`.

    Args:
        python_wasm: path of a CPython built for WASI. Its library must be inside the module or in `files`.
        writable: whether programs may write to the work folder. Its size then has no limit.
        max_output, disk_mb: as in `Bounds`.

    Raises: MissingExtra, without the package wasmtime.
    """

    name = "wasmtime"

    def __init__(
        self, *, python_wasm: str | Path = "", writable: bool = False, max_output: int = 65536, disk_mb: int = 64
    ) -> None:
        if importlib.util.find_spec("wasmtime") is None:
            raise missing_extra("wasmtime", extra="tools", needed_for="sandbox: wasmtime")
        if python_wasm and not Path(python_wasm).is_file():
            raise PalaestraError(
                where="sandbox: wasmtime",
                what=f"`python_wasm` is {str(python_wasm)!r}, which is not a file.",
                remedy="Give the path of a CPython built for WASI.",
            )
        self._bounds = Bounds(max_output=max_output, disk_mb=disk_mb)
        self._python, self._writable = str(python_wasm), writable
        self._live = Live(self.name)
        self.python = "python" if python_wasm else ""

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
        network: Literal["none"] = "none",
    ) -> Execution:
        """Run a module and wait for its end."""
        return self._run(self._job(command, stdin, files, timeout_s, memory_mb, cpu_s, network))

    async def aexec(
        self,
        command: Sequence[str],
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
        network: Literal["none"] = "none",
    ) -> Execution:
        """Like `exec`, without blocking the event loop."""
        checked = self._job(command, stdin, files, timeout_s, memory_mb, cpu_s, network)
        return await in_thread(self._live.threads, lambda cancel_fd: self._run(checked, cancel_fd))

    def guarantees(self) -> Guarantees:
        """What is stopped: a module cannot name anything that it was not given."""
        misses = {Threat.DISK: "the work folder can be written to and has no limit"} if self._writable else {}
        return Guarantees(
            backend=self.name,
            isolation="isolation",
            stops=frozenset(Threat) - misses.keys(),
            misses=misses,
            notes=("it runs WebAssembly only", "a fault of wasmtime can break the isolation"),
        )

    def close(self) -> None:
        """Kill the commands that still run."""
        self._live.close()

    def _run(self, task: Job, cancel_fd: int = -1) -> Execution:
        with TemporaryFolder("wasm") as folder:
            write_files(folder, task)
            asked = {
                "module": str(self._module(task.command[0], folder)),
                "argv": list(task.command),
                "folder": str(folder),
                "writable": self._writable,
                "memory": task.memory_mb * 1024 * 1024,
                "fuel": task.cpu_s * INSTRUCTIONS,
            }
            process = self._live.start(
                [sys.executable, "-I", str(RUNNER), json.dumps(asked), str(os.getpid())],
                env=clean_environment({}, home=str(folder)),
            )
            ended, status, watch, seconds = supervise(process, task, self._bounds, live=self._live, cancel_fd=cancel_fd)
        done = execution(ended, status, watch, seconds)
        if ended == "itself" and "wasm trap: all fuel consumed" in done.err[-400:]:
            return Execution(rc=None, out=done.out, err=done.err, timed_out=True, killed_by="cpu", seconds=done.seconds)
        return done

    def _module(self, word: str, folder: Path) -> Path:
        if word == "python" and self._python:
            return Path(self._python)
        found = [path for path in (folder / word, Path(word)) if path.is_file()]
        if not found:
            raise PalaestraError(
                where="sandbox: wasmtime",
                what=f"there is no module {word!r}.",
                remedy="Give a .wasm or .wat file by its path, or among `files`"
                + ("." if self._python else ". For Python, give `python_wasm`."),
            )
        return found[0]

    def _job(
        self,
        command: Sequence[str],
        stdin: str,
        files: Mapping[str, str | bytes] | None,
        timeout_s: float,
        memory_mb: int,
        cpu_s: float | None,
        network: str,
    ) -> Job:
        return job(
            command,
            stdin=stdin,
            files=files,
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            cpu_s=cpu_s,
            network=network,
            bounds=self._bounds,
        )
