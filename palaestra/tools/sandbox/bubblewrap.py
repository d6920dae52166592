"""The back end with isolation: bubblewrap, resource limits, control groups and a filter of system calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Group
from palaestra.tools.sandbox.handshake import Handshake
from palaestra.tools.sandbox.limits import MEGABYTE, Bounds, Job, job
from palaestra.tools.sandbox.namespaces import HOME, find_means, own_uid
from palaestra.tools.sandbox.processes import Live, execution, supervise
from palaestra.tools.sandbox.protocol import Execution, Guarantees
from palaestra.tools.sandbox.watching import in_thread

MOST_FILES = 200  # each takes one open descriptor while the program starts


class BubblewrapSandbox:
    """Runs commands in namespaces of their own: no network, no files of the host but programs, a new work folder.

    Args:
        max_output, disk_mb, processes: as in `Bounds`. Temporary files in /tmp have another `disk_mb`.
        readable: files and folders of the host that programs may read, at the same paths.
        packages: whether programs may import the packages installed beside palaestra. False: only those of the base
            interpreter.
        groups: whether to use control groups where they are available. False: never.

    Raises: PalaestraError, if bubblewrap is missing or cannot make namespaces. No weaker back end is used instead.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        max_output: int = 65536,
        disk_mb: int = 64,
        processes: int = 64,
        readable: Sequence[str | Path] = (),
        packages: bool = False,
        groups: bool = True,
    ) -> None:
        self._bounds = Bounds(max_output=max_output, disk_mb=disk_mb, processes=processes)
        self._means = find_means(readable=tuple(str(path) for path in readable), packages=packages, groups=groups)
        self._live = Live(self.name)
        self.python = self._means.python

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
        """Run a command and wait for its end."""
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
        """What is stopped on this machine. `misses` names what the machine lacks to stop the rest."""
        return self._means.guarantees(self.name)

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
        checked = job(
            command,
            stdin=stdin,
            files=files,
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            cpu_s=cpu_s,
            network=network,
            bounds=self._bounds,
        )
        if len(checked.files) > MOST_FILES:
            raise PalaestraError(
                where="sandbox: bubblewrap",
                what=f"{len(checked.files)} files are too many.",
                remedy=f"Give at most {MOST_FILES} files, or one archive that the program unpacks.",
            )
        return checked

    def _run(self, task: Job, cancel_fd: int = -1) -> Execution:
        memory = (task.memory_mb + self._bounds.disk_mb) * MEGABYTE
        group = self._means.group(processes=self._bounds.processes + 4, memory=memory)  # 4 more for bubblewrap itself
        try:
            return self._watched(task, group, cancel_fd)
        finally:
            if group:
                group.remove()

    def _watched(self, task: Job, group: Group | None, cancel_fd: int) -> Execution:
        uid = own_uid()
        with Handshake(wait=group is not None) as shake:
            arguments = self._means.view(self._bounds, shake.lend)
            arguments += [word for name in task.folders for word in ("--perms", "0777", "--dir", f"{HOME}/{name}")]
            for name, content in task.files.items():
                arguments += ["--perms", "0777", "--file", shake.lend(content), f"{HOME}/{name}"]
            arguments += self._means.filter(shake.lend) + shake.arguments
            inner = [*task.limited(self._means.shell, self._bounds), *self._means.drop(uid), *task.command]
            process = self._live.start(
                [self._means.bwrap, "--args", shake.lend("\0".join(arguments).encode()), "--", *inner],
                pass_fds=shake.lent,
                env={},
                **self._means.identity(uid),
            )
            shake.close_lent()
            ended, status, watch, seconds = supervise(
                process,
                task,
                self._bounds,
                live=self._live,
                cancel_fd=cancel_fd,
                started=lambda: shake.release(group),
                clean=shake.wait_for_end,
            )
            if ended == "itself":
                status = shake.status(status, watch.err.text)
            blame = group.blame() if group and status != 0 else "nobody"
        return execution(ended, status, watch, seconds, blame=blame)


def unavailable() -> str:
    """The reason why bubblewrap cannot be used here; empty if it can."""
    try:
        find_means(readable=(), packages=False, groups=True)
    except PalaestraError as fault:
        return f"{fault.what} {fault.remedy}"
    return ""
