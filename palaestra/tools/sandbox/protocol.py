"""What every sandbox offers: one command run under limits, and what the sandbox stops, as data.

Knows results, limits and claims. Knows nothing of how a back end keeps its claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Isolation = Literal["isolation", "none"]
KilledBy = Literal["time", "cpu", "memory", "output", "signal", "worker"]


class Threat(StrEnum):
    """What a program may try. A back end claims to stop some of these; tests try each."""

    ENDLESS = "endless"  # never ends: stopped by the wall clock
    BUSY = "busy"  # burns processor time
    MEMORY = "memory"  # one process allocates 8 GiB
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
    NAMESPACE = "namespace"  # makes user namespaces or calls mount, ptrace, bpf, keyctl or io_uring


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """What a back end stops, and what it does not, with the reason.

    `isolation` is "isolation" only if programs cannot reach files, processes and network of the host.
    Every threat is in exactly one of the two. No back end stops a fault of the kernel that it shares with the host.
    """

    backend: str
    isolation: Isolation
    stops: frozenset[Threat]
    misses: Mapping[Threat, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        stated = self.stops | self.misses.keys()
        if stated != set(Threat) or self.stops & self.misses.keys():
            raise ValueError(f"{self.backend}: each threat is either stopped or missed, once: {sorted(stated)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a command ended.

    Args:
        rc: exit status; minus the number of the signal if a signal ended it; None if the sandbox killed it.
        out: standard output, at most the sandbox's `max_output` bytes; what is no UTF-8 shows as �.
        err: standard error, likewise.
        timed_out: the wall clock or the processor's ended it.
        oom: a limit of memory ended it, or Python reported MemoryError.
        killed_by: which limit ended it: time, cpu, memory, output; "signal" if a signal did that is none of these;
            "worker" if the warm process that served it died, through no fault of this command.
        truncated: some output was dropped.
        seconds: wall time.
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
    """Runs commands, each in a fresh empty work folder. Safe to use from several threads and tasks at once."""

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
        """Run a command and wait for its end. A program that fails is a result, never an exception.

        Args:
            command: program and arguments; no shell reads them.
            stdin: what the program reads from standard input.
            files: put into the work folder before the start, by path relative to it.
            timeout_s: wall clock; then everything that it started is killed.
            memory_mb: memory of each process, and of all together where the back end can.
            cpu_s: processor time of each process. None: as `timeout_s`.
            network: only "none".
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
        """As `exec`, without blocking the event loop. Cancelling it kills the program."""
        ...

    def guarantees(self) -> Guarantees:
        """What this sandbox stops on this machine, and what not."""
        ...

    def close(self) -> None:
        """Kill what still runs and remove what is left."""
        ...
