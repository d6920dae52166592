"""A pool of warm Python interpreters for thousands of short programs. Each program runs in a fork of its own."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Group
from palaestra.tools.sandbox.limits import Bounds, Job, job
from palaestra.tools.sandbox.namespaces import HOME, Means, find_means
from palaestra.tools.sandbox.processes import execution
from palaestra.tools.sandbox.protocol import Execution, Guarantees, Threat
from palaestra.tools.sandbox.server import Server, start_isolated, start_plain
from palaestra.tools.sandbox.subprocesses import MISSES
from palaestra.tools.sandbox.watching import Watch, in_thread
from palaestra.tools.temporary import TemporaryFolder

PRELOAD = ("bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools")
PRELOAD += ("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "typing")
DIED = "the worker that served this call died; it is replaced, and this call was not repeated"


class Closing(Protocol):
    """What the pool closes when it is closed itself."""

    def close(self) -> None:
        """End its processes."""
        ...


class PythonPool:
    """Warm Python interpreters. Each call is a fork with namespaces, files and a user of its own.

    Args:
        backend: "bubblewrap" isolates. "subprocess" does not, and says so in `guarantees`.
        workers: number of interpreters that wait. Higher: more forks at the same time. Usual: the number of cores.
        parallel: most calls at once. Further calls wait.
        sessions: most sessions at once. A further session is refused.
        preload: modules that are imported once, before any fork. Code may import others too.
        total_mb: memory of everything that one worker serves, files included, where there are control groups. There,
            each call has `memory_mb` and `disk_mb` for all its processes and files together. If the calls of one worker
            reach the total, the kernel ends one of them, whose result then says that it was not at fault.
        max_output, disk_mb, processes: as in `Bounds`.
        packages, readable, groups: as in `BubblewrapSandbox`.

    Raises: PalaestraError, if the back end cannot be used here. No weaker one is used instead.
    """

    def __init__(
        self,
        *,
        backend: Literal["bubblewrap", "subprocess"] = "bubblewrap",
        workers: int = 2,
        parallel: int = 8,
        sessions: int = 256,
        preload: Sequence[str] = PRELOAD,
        total_mb: int = 2048,
        max_output: int = 65536,
        disk_mb: int = 64,
        processes: int = 64,
        packages: bool = False,
        readable: Sequence[str | Path] = (),
        groups: bool = True,
    ) -> None:
        for name, value in (
            ("workers", workers),
            ("parallel", parallel),
            ("sessions", sessions),
            ("total_mb", total_mb),
        ):
            if value < 1:
                raise PalaestraError(
                    where="PythonPool", what=f"`{name}` is {value}.", remedy=f"Set `{name}` to 1 or more."
                )
        if backend not in ("bubblewrap", "subprocess"):
            raise PalaestraError(
                where="PythonPool", what=f"it has no back end `{backend}`.", options=("bubblewrap", "subprocess")
            )
        self.backend = backend
        self.bounds = Bounds(
            max_output=max_output, disk_mb=disk_mb, processes=processes if backend == "bubblewrap" else 4096
        )
        self.means: Means | None = None
        if backend == "bubblewrap":
            paths = tuple(str(path) for path in readable)
            self.means = find_means(readable=paths, packages=packages, groups=groups)
        binds = self.means.binds if self.means else ()
        self._settings = {"preload": tuple(preload), "disk_mb": disk_mb, "binds": binds}
        self._total_mb, self._most = total_mb, parallel + sessions
        self._slots = threading.BoundedSemaphore(parallel)
        self._sessions = sessions
        self._admitted: set[Closing] = set()
        self.threads = ThreadPoolExecutor(max(parallel, 32), thread_name_prefix="sandbox-pool")
        # A server dies with the thread that started it, so this one thread lives as long as the pool.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="sandbox-start")
        self._lock = threading.Lock()
        self._closed = False
        self._servers: list[Server] = []
        try:
            self._servers += [self._starter.submit(self._start).result() for _ in range(workers)]
            self._check_groups()
        except BaseException:
            self.close()
            raise

    # ---- calls --------------------------------------------------------------------------------------------
    def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        argv: Sequence[str] = (),
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
    ) -> Execution:
        """Run a program as `python main.py *argv` would, in a new work folder with `files`."""
        return self._run(self._job(code, stdin, files, argv, timeout_s, memory_mb, cpu_s))

    async def arun(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        argv: Sequence[str] = (),
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
    ) -> Execution:
        """Like `run`, without blocking the event loop. If the call is cancelled, the program is killed."""
        checked = self._job(code, stdin, files, argv, timeout_s, memory_mb, cpu_s)
        return await in_thread(self.threads, lambda cancel_fd: self._run(checked, cancel_fd))

    def guarantees(self) -> Guarantees:
        """What calls and sessions cannot do to the host or to each other."""
        if self.means is None:
            return Guarantees(
                backend="subprocess",
                isolation="none",
                stops=frozenset(Threat) - MISSES.keys(),
                misses=MISSES,
                notes=("each call has a process and a folder of its own, but runs as you",),
            )
        return self.means.guarantees("bubblewrap")

    def close(self) -> None:
        """End all servers, calls and sessions."""
        with self._lock:
            sessions = list(self._admitted)
        for session in sessions:
            session.close()
        with self._lock:
            self._closed = True
            servers, self._servers = self._servers, []
        for server in servers:
            server.destroy()
        self.threads.shutdown(wait=True)
        self._starter.shutdown(wait=True)

    def __enter__(self) -> PythonPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- servers ------------------------------------------------------------------------------------------
    def take(self) -> Server:
        """Take the server with the lowest load and raise its load by one. Dead servers are replaced first.

        Raises: PalaestraError, if the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise PalaestraError(where="PythonPool", what="the pool is closed.", remedy="Make a new PythonPool.")
            for place, server in enumerate(self._servers):
                if server.dead or server.process.poll() is not None:
                    server.destroy()
                    self._servers[place] = self._starter.submit(self._start).result()
            chosen = min(self._servers, key=lambda server: server.load)
            chosen.load += 1
            return chosen

    def give(self, server: Server) -> None:
        """Lower the load of a server by one."""
        with self._lock:
            server.load -= 1

    def admit(self, session: Closing) -> None:
        """Give a session a place. Closing the pool closes the session.

        Raises: PalaestraError, if all places are taken or the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise PalaestraError(where="PythonPool", what="the pool is closed.", remedy="Make a new PythonPool.")
            if len(self._admitted) >= self._sessions:
                raise PalaestraError(
                    where="PythonPool",
                    what=f"all {self._sessions} sessions are in use.",
                    remedy="Close sessions whose episodes are over, or raise `sessions`.",
                )
            self._admitted.add(session)

    def dismiss(self, session: Closing) -> None:
        """Free the place of a session."""
        with self._lock:
            self._admitted.discard(session)

    def _check_groups(self) -> None:
        """Do without control groups if forks cannot move into theirs, as under old kernels for an ordinary user."""
        if self.means is None or not self.means.groups or self.means.way == "root" or self.run("").ok:
            return
        self.means = dataclasses.replace(self.means, groups=None)
        for place, server in enumerate(self._servers):
            server.destroy()
            self._servers[place] = self._starter.submit(self._start).result()

    def _start(self) -> Server:
        if self.means is None:
            return start_plain(self._settings)
        return start_isolated(self.means, self.bounds, self._settings, total_mb=self._total_mb, most=self._most)

    # ---- one call -----------------------------------------------------------------------------------------
    def _job(
        self,
        code: str,
        stdin: str,
        files: Mapping[str, str | bytes] | None,
        argv: Sequence[str],
        timeout_s: float,
        memory_mb: int,
        cpu_s: float | None,
    ) -> tuple[Job, str, tuple[str, ...]]:
        checked = job(
            ["python"],
            stdin=stdin,
            files=files,
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            cpu_s=cpu_s,
            network="none",
            bounds=self.bounds,
        )
        return checked, code, ("main.py", *argv)

    def _run(self, asked: tuple[Job, str, tuple[str, ...]], cancel_fd: int = -1) -> Execution:
        task, code, argv = asked
        with self._slots, self.home() as home:
            request = self.request(task, home) | {"code": code, "argv": list(argv)}
            for _ in range(2):  # whether a server died while idle shows only here, before the code has run
                server = self.take()
                try:
                    return self._watched(server, request, task, cancel_fd)
                except OSError:
                    server.dead = True
                finally:
                    self.give(server)
        raise PalaestraError(
            where="PythonPool", what="two servers in a row died before the call.", remedy="Run `palaestra doctor`."
        )

    def _watched(self, server: Server, request: dict[str, Any], task: Job, cancel_fd: int) -> Execution:
        pipes = [os.pipe() for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        watch = Watch(pipes[1][0], pipes[2][0], pipes[0][1], task.stdin, self.bounds, cancel_fd)
        part: Group | None = None
        try:
            try:
                part = server.part(memory_mb=task.memory_mb + self.bounds.disk_mb)
                number, end_fd = server.fork(request, theirs, session=False, part=part)
            finally:
                for fd in theirs:
                    os.close(fd)
            ended, seconds = watch.timed(end_fd, timeout_s=task.timeout_s)
            if ended != "itself":
                server.kill(number)
            status = server.status(end_fd)
            watch.drain()
            blame = part.blame() if part and status else "nobody"
        finally:
            watch.close()
            if part:
                part.remove()
        if status is None and ended == "itself":
            return Execution(
                rc=None, out=watch.out.text, err=f"{watch.err.text}{DIED}\n", killed_by="worker", seconds=seconds
            )
        return execution(ended, status or 0, watch, seconds, blame=blame)

    def home(self) -> Home:
        """The work folder of a call: inside a namespace, or a temporary folder of the host."""
        return Home(isolated=self.means is not None)

    def request(self, task: Job, home: str) -> dict[str, Any]:
        """What the server needs to know about a call or session."""
        return {"home": home, "files": dict(task.files), "limits": task.numbers(self.bounds)}


class Home:
    """A context manager for a work folder. It gives the path as the program sees it."""

    def __init__(self, *, isolated: bool) -> None:
        self._made = None if isolated else TemporaryFolder("call")

    def __enter__(self) -> str:
        return str(self._made.path) if self._made else HOME

    def __exit__(self, *_: object) -> None:
        if self._made:
            self._made.close()
