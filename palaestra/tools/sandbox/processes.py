"""Start one process, watch it to its end, and report how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Blame
from palaestra.tools.sandbox.limits import Bounds, Job
from palaestra.tools.sandbox.protocol import Execution, KilledBy
from palaestra.tools.sandbox.watching import Ended, Watch

STARVED = "memory ran out for everything that runs here; this program was ended within its own limit"
PARALLEL = 64  # most threads that wait for executions


@dataclass(slots=True)
class Live:
    """The processes of a sandbox that still run, so that closing the sandbox can end them."""

    name: str
    threads: ThreadPoolExecutor = field(init=False)
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix=f"sandbox-{self.name}")

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """Start a process with three pipes, as the leader of a new session.

        Raises: PalaestraError, if the sandbox is closed or the program cannot be started.
        """
        with self.lock:
            if self.closed:
                raise PalaestraError(
                    where=f"sandbox: {self.name}", what="the sandbox is closed.", remedy="Make a new sandbox."
                )
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                    **options,  # type: ignore[call-overload]
                )
            except OSError as fault:
                raise PalaestraError(
                    where=f"sandbox: {self.name}",
                    what=f"`{command[0]}` cannot be started: {fault}.",
                    remedy="Check this machine's limits of processes and open files.",
                ) from fault
            self.running.add(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Remove a process that has ended and was waited for."""
        with self.lock:
            self.running.discard(process)

    def close(self) -> None:
        """Kill all process groups. The threads that wait for them clean up."""
        with self.lock:
            self.closed = True
            for process in self.running:
                kill_group(process)
        self.threads.shutdown(wait=True)


def supervise(
    process: subprocess.Popen[bytes],
    job: Job,
    bounds: Bounds,
    *,
    live: Live,
    cancel_fd: int = -1,
    started: Callable[[], None] = lambda: None,
    clean: Callable[[], None] = lambda: None,
) -> tuple[Ended, int, Watch, float]:
    """Watch a process to its end and kill its group. Returns why it ended, its status, its output and the seconds.

    Args:
        started: called before the output is read. It may raise.
        clean: called after the group was killed, before the rest of the output is read.
    """
    assert process.stdin and process.stdout and process.stderr
    begun = time.monotonic()
    fds = [os.dup(stream.fileno()) for stream in (process.stdout, process.stderr, process.stdin)]
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    watch = Watch(*fds, job.stdin, bounds, cancel_fd)
    try:
        with end_of(process) as ended_fd:
            try:
                started()
                ended = watch.until(ended_fd, timeout_s=job.timeout_s)
            finally:
                seconds = time.monotonic() - begun
                kill_group(process)
                status = process.wait()
        clean()
        watch.drain()
    finally:
        live.forget(process)
        watch.close()
    return ended, status, watch, seconds


def execution(ended: Ended, status: int, watch: Watch, seconds: float, *, blame: Blame = "nobody") -> Execution:
    """The result that callers see.

    Args:
        status: negative if a signal ended the process.
        blame: whose memory made the kernel kill it.
    """
    killed_by: KilledBy | None = None
    if ended in ("time", "output"):
        killed_by = "time" if ended == "time" else "output"
    elif blame != "nobody":
        killed_by = "memory" if blame == "itself" else "worker"
    elif status < 0:
        killed_by = "cpu" if -status == signal.SIGXCPU else "signal"
    err = watch.err.text
    told = status != 0 and any(word in err[-2000:] for word in ("MemoryError", "Cannot allocate memory", "bad_alloc"))
    return Execution(
        rc=None if ended != "itself" else status,
        out=watch.out.text,
        err=f"{err}{STARVED}\n" if killed_by == "worker" else err,
        timed_out=killed_by in ("time", "cpu"),
        oom=killed_by == "memory" or told,
        killed_by=killed_by,
        truncated=watch.out.truncated or watch.err.truncated,
        seconds=seconds,
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that the process leads. A process that has left the group is not killed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def end_of(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends. The caller still has to wait for the process."""
    if hasattr(os, "pidfd_open"):
        fd = os.pidfd_open(process.pid)
        try:
            yield fd
        finally:
            os.close(fd)
        return
    ended_fd, tell_fd = os.pipe()  # on systems without process descriptors, a thread reports the end

    def tell() -> None:
        process.wait()
        os.close(tell_fd)

    waiter = threading.Thread(target=tell, daemon=True)
    waiter.start()
    try:
        yield ended_fd
    finally:
        waiter.join()
        os.close(ended_fd)


def filled(content: bytes) -> int:
    """A descriptor from which another program can read this content."""
    fd = os.memfd_create("palaestra", 0) if hasattr(os, "memfd_create") else _nameless()
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _nameless() -> int:
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    return fd


def clean_environment(extra: Mapping[str, str], *, home: str) -> dict[str, str]:
    """The environment variables of a program. None comes from the host; hash seed and thread counts are fixed."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **extra,
    }
