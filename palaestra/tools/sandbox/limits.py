"""The limits of one execution, and the check of its arguments before anything starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from palaestra.errors import PalaestraError

# The shell sets the limits by `ulimit`, because a hook between fork and exec is unsafe in programs with threads.
# -v is in kilobytes, -f in half kilobytes. The soft limit of seconds sends SIGXCPU, the hard one kills.
# bash counts processes with -u, dash with -p, so both are tried.
ULIMITS = """ulimit -c 0 && ulimit -S -t {cpu} && ulimit -H -t {cpu_hard} && ulimit -v {memory} || exit 126
ulimit -f {file} && ulimit -n {open} || exit 126
ulimit -u {processes} 2>/dev/null || ulimit -p {processes} || exit 126
exec "$@"
"""
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that a sandbox sets for every execution.

    Args:
        max_output: bytes that are kept of standard output, and of standard error. A program that writes more than 64
            times as much is killed.
        disk_mb: most megabytes in the work folder, and in one file.
        processes: most processes and threads at once.
        open_files: most open files of one process.
    """

    max_output: int = 65536
    disk_mb: int = 64
    processes: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        for name in ("max_output", "disk_mb", "processes", "open_files"):
            if (value := getattr(self, name)) < 1:
                raise _refused(f"`{name}` is {value}.", f"Set `{name}` to 1 or more.")

    @property
    def flood(self) -> int:
        """Bytes of one stream after which the program is killed."""
        return 64 * self.max_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution, with its arguments checked."""

    command: tuple[str, ...]
    stdin: bytes
    files: Mapping[str, bytes]
    timeout_s: float
    memory_mb: int
    cpu_s: int

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that the files need, parents first."""
        found = {str(parent) for path in self.files for parent in PurePosixPath(path).parents} - {"."}
        return tuple(sorted(found))

    def numbers(self, bounds: Bounds) -> list[tuple[str, int, int]]:
        """The limits as `setrlimit` takes them: name, soft, hard."""
        equal = {
            "RLIMIT_CORE": 0,
            "RLIMIT_AS": self.memory_mb * MEGABYTE,
            "RLIMIT_FSIZE": bounds.disk_mb * MEGABYTE,
            "RLIMIT_NOFILE": bounds.open_files,
            "RLIMIT_NPROC": bounds.processes,
        }
        return [("RLIMIT_CPU", self.cpu_s, self.cpu_s + 1), *((name, value, value) for name, value in equal.items())]

    def limited(self, shell: str, bounds: Bounds) -> list[str]:
        """The beginning of a command line: a shell that sets its own limits and then executes what follows."""
        script = ULIMITS.format(
            cpu=self.cpu_s,
            cpu_hard=self.cpu_s + 1,
            memory=self.memory_mb * 1024,
            file=bounds.disk_mb * 2048,
            open=bounds.open_files,
            processes=bounds.processes,
        )
        return [shell, "-c", script, "limits"]


def job(
    command: Sequence[str],
    *,
    stdin: str,
    files: Mapping[str, str | bytes] | None,
    timeout_s: float,
    memory_mb: int,
    cpu_s: float | None,
    network: str,
    bounds: Bounds,
) -> Job:
    """Check the arguments of `exec`.

    Raises: PalaestraError, for arguments that no back end can handle.
    """
    if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
        raise _refused(f"the command is {command!r}.", 'Give program and arguments as a list: ["python3", "main.py"].')
    if any("\0" in word for word in command):
        raise _refused("the command contains a zero byte.", "Put such data into a file or standard input.")
    if network != "none":
        raise _refused(f"`network` is {network!r}.", 'Programs have no network: only network="none" is possible.')
    for name, value, least in (("timeout_s", timeout_s, 0.0), ("cpu_s", cpu_s, 0.0), ("memory_mb", memory_mb, 15)):
        if value is not None and not (value > least and math.isfinite(value)):
            raise _refused(f"`{name}` is {value}.", f"Set `{name}` to a finite number above {least:g}.")
    return Job(
        command=tuple(command),
        stdin=stdin.encode(errors="surrogatepass"),
        files=checked_files(files or {}, most=bounds.disk_mb * MEGABYTE),
        timeout_s=float(timeout_s),
        memory_mb=int(memory_mb),
        cpu_s=max(1, math.ceil(timeout_s if cpu_s is None else cpu_s)),
    )


def checked_files(files: Mapping[str, str | bytes], *, most: int) -> dict[str, bytes]:
    """The files as bytes, by path.

    Raises: PalaestraError, for a path outside the work folder, for a file that is also a folder, or for more than
        `most` bytes in all.
    """
    checked = {}
    for path, content in files.items():
        pure = PurePosixPath(path)
        if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise _refused(f"the file {path!r} is not inside the work folder.", "Give a relative path without `..`.")
        checked[str(pure)] = content.encode(errors="surrogatepass") if isinstance(content, str) else bytes(content)
    for path in checked:
        for parent in PurePosixPath(path).parents:
            if str(parent) in checked:
                raise _refused(f"{str(parent)!r} is a file, so {path!r} cannot be in it.", "Rename one of them.")
    if (size := sum(map(len, checked.values()))) > most:
        what = f"the files have {size} bytes, and the work folder has room for {most}."
        raise _refused(what, "Raise `disk_mb`, or give fewer files.")
    return checked


def write_files(folder: Path, job: Job) -> None:
    """Write the files of a job into a new folder of the host."""
    for name in job.folders:
        (folder / name).mkdir()
    for name, content in job.files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)


def program(name: str, *, needed_for: str, remedy: str) -> str:
    """The path of a program that is installed on this machine.

    Raises: PalaestraError, if it is not installed.
    """
    found = shutil.which(name)
    if not found:
        raise PalaestraError(where=needed_for, what=f"the program `{name}` is not installed.", remedy=remedy)
    return found


def _refused(what: str, remedy: str) -> PalaestraError:
    return PalaestraError(where="sandbox", what=what, remedy=remedy)
