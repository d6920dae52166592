"""The protocol of sandboxes: run one command under limits, and state as data what the sandbox stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Isolation = Literal["isolation", "none"]
KilledBy = Literal["time", "cpu", "memory", "output", "signal", "worker"]


class Threat(StrEnum):
    """What a program may try. A back end claims to stop some of these, and tests try each of them."""

    ENDLESS = "endless"  # never ends, until the wall clock stops it
    BUSY = "busy"  # burns processor time
    MEMORY = "memory"  # one process allocates 8 GiB
    MEMORY_FILES = "memory_files"  # one process holds more than its limit in memory files or System V shared memory
    MEMORY_KERNEL = "memory_kernel"  # one process makes the kernel hold much for it: buffers of sockets, empty files
    MEMORY_TOTAL = "memory_total"  # many processes together allocate more than the limit
    DISK = "disk"  # fills the work folder, also by unpacking a small archive
    OUTPUT = "output"  # writes without end
    FORK_BOMB = "fork_bomb"  # starts processes without end
    DAEMON = "daemon"  # leaves a process behind, out of its process group
    READ_HOST = "read_host"  # reads a file of the host
    WRITE_HOST = "write_host"  # writes a file of the host
    SYMLINK = "symlink"  # leaves the work folder through a link
    NETWORK = "network"  # connects to a server
    SIGNAL = "signal"  # signals or reads a process that is not its own
    NAMESPACE = "namespace"  # makes user namespaces, or calls mount, ptrace, bpf, keyctl or io_uring


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """What a back end stops, and what it does not stop, with the reason.

    `isolation` is "isolation" only if programs cannot reach the files, processes and network of the host. Each threat
    is either in `stops` or in `misses`. No back end stops a fault of the kernel that it shares with the host.
    """

    backend: str
    isolation: Isolation
    stops: frozenset[Threat]
    misses: Mapping[Threat, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        stated = self.stops | self.misses.keys()
        if stated != set(Threat) or self.stops & self.misses.keys():
            raise ValueError(f"{self.backend}: each threat must be in either `stops` or `misses`: {sorted(stated)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a command ended.

    Args:
        rc: exit status; minus the number of the signal if a signal ended the command; None if the sandbox killed it.
        out: standard output, at most the sandbox's `max_output` bytes. Bytes that are not UTF-8 are shown as �.
        err: standard error, likewise.
        timed_out: the limit of wall clock or processor time ended the command.
        oom: the limit of memory ended it, or it reported that memory ran out, as Python does by MemoryError.
        killed_by: the limit that ended it: time, cpu, memory or output; "signal" for any other signal; "worker" if it
            ended through no fault of its own, because the warm process that served it died, or because memory ran out
            for all that this process serves while the command was within its own limit.
        truncated: some output was dropped.
        seconds: duration on the wall clock.
    """

    rc: int | None
    out: str
    err: str
    timed_out: bool = False
    oom: bool = False
    killed_by: KilledBy | None = None
    truncated: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with status 0."""
        return self.rc == 0


class Sandbox(Protocol):
    """Runs commands, each in a new work folder. Several threads and tasks may use it at the same time."""

    name: str
    python: str  # the Python interpreter inside the sandbox: `exec([sandbox.python, "main.py"], files=…)`

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
        """Run a command and wait for its end. A program that fails gives a result, never an exception.

        Args:
            command: program and arguments. No shell interprets them.
            stdin: text that the program reads from standard input.
            files: files that are in the work folder at the start, by relative path.
            timeout_s: seconds of wall clock, after which the program and all that it started are killed.
            memory_mb: memory of each process, and of all together where the back end can limit that.
            cpu_s: seconds of processor time of each process. None: the same as `timeout_s`.
            network: only "none" is possible.
        """
        ...

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
        """Like `exec`, without blocking the event loop. If the call is cancelled, the program is killed."""
        ...

    def guarantees(self) -> Guarantees:
        """What this sandbox stops on this machine, and what it does not stop."""
        ...

    def close(self) -> None:
        """Kill the commands that still run and remove what they left."""
        ...
