"""The back end without isolation: a child process with limits. Use it only for code that you trust."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from palaestra.tools.sandbox.limits import Bounds, Job, job, program, write_files
from palaestra.tools.sandbox.processes import Live, clean_environment, execution, supervise
from palaestra.tools.sandbox.protocol import Execution, Guarantees, Threat
from palaestra.tools.sandbox.watching import in_thread
from palaestra.tools.temporary import TemporaryFolder

MISSES = {
    Threat.MEMORY_FILES: "the limit counts the address space, not memory files and shared memory",
    Threat.MEMORY_KERNEL: "buffers of sockets are not counted",
    Threat.MEMORY_TOTAL: "the limit holds for each process, not for all together",
    Threat.DISK: "each file has a limit, all together have none",
    Threat.FORK_BOMB: "the limit of processes counts all processes of the user, and none of root's",
    Threat.DAEMON: "a process that starts a session of its own is not killed",
    Threat.READ_HOST: "programs read what you can read",
    Threat.WRITE_HOST: "programs write what you can write",
    Threat.SYMLINK: "links are followed",
    Threat.NETWORK: "programs have your network",
    Threat.SIGNAL: "programs run as you",
    Threat.NAMESPACE: "no system call is refused",
}


class SubprocessSandbox:
    """Runs commands as child processes with limits of time, memory and output. It does not isolate.

    Args:
        max_output, disk_mb, processes: as in `Bounds`. The limit `processes` counts all processes of the user, so it
            is at least 4096.
    """

    name = "subprocess"

    def __init__(self, *, max_output: int = 65536, disk_mb: int = 64, processes: int = 4096) -> None:
        self._bounds = Bounds(max_output=max_output, disk_mb=disk_mb, processes=max(processes, 4096))
        self._shell = program("sh", needed_for="sandbox: subprocess", remedy="This back end needs a POSIX system.")
        self._live = Live(self.name)
        self._end_with_parent = ending_with_parent()
        self.python = sys.executable

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
        """Run a command and wait for its end. The program can use the network all the same: see `guarantees`."""
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
        """What limits on a single process stop. There is no isolation."""
        return Guarantees(
            backend=self.name,
            isolation="none",
            stops=frozenset(Threat) - MISSES.keys(),
            misses=MISSES,
            notes=("only for code that you trust: a program can do whatever you can do",),
        )

    def close(self) -> None:
        """Kill the commands that still run."""
        self._live.close()

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

    def _run(self, task: Job, cancel_fd: int = -1) -> Execution:
        with TemporaryFolder("command") as folder:
            write_files(folder, task)
            process = self._live.start(
                [*self._end_with_parent, *task.limited(self._shell, self._bounds), *task.command],
                cwd=folder,
                env=clean_environment({}, home=str(folder)),
            )
            return execution(*supervise(process, task, self._bounds, live=self._live, cancel_fd=cancel_fd))


@functools.cache
def ending_with_parent() -> tuple[str, ...]:
    """The beginning of a command line that lets the kernel kill a program when the thread that started it ends.

    Empty where the program `setpriv` of util-linux is missing. Processes that the program starts are not killed.
    """
    words = (shutil.which("setpriv") or "", "--pdeathsig", "KILL")
    try:
        works = bool(words[0]) and subprocess.run([*words, "true"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.SubprocessError):
        works = False
    return words if works else ()
