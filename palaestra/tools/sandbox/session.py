"""A session runs pieces of code that share variables and files, as one episode needs it.

Each piece runs in a fork of the session. If it ends, even with an error, the fork becomes the session. If a limit kills
it, the session goes on with the variables that it had before, and files keep what was written. Threads end with the
piece that started them. Processes may run on until the session is closed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Blame
from palaestra.tools.sandbox.limits import MEGABYTE, Job, job
from palaestra.tools.sandbox.living import Living, told_files
from palaestra.tools.sandbox.processes import execution
from palaestra.tools.sandbox.protocol import Execution
from palaestra.tools.sandbox.python_pool import PythonPool
from palaestra.tools.sandbox.watching import Ended, Watch, in_thread

State = Literal["kept", "before", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """How one piece of code ended, and what became of the variables.

    Args:
        execution: the output and how the piece ended. `rc` is 0, or 1 after an error.
        state: "kept": the variables are as the code left them. "before": the piece was killed, and they are as before
            it. "lost": the session died, and the next piece starts without variables and with the first files.
    """

    execution: Execution
    state: State


class Session:
    """Python whose variables last from piece to piece. Pieces run one after another.

    Args:
        pool: the pool in which the session takes a place until `close`.
        files: files that are in the work folder from the start.
        memory_mb: memory of each process of the session. Where there are control groups, all together have twice as
            much.
        cpu_s: seconds of processor time of each process. Each piece is a new process.

    Raises: PalaestraError, if the pool has no place left.
    """

    def __init__(
        self,
        pool: PythonPool,
        *,
        files: Mapping[str, str | bytes] | None = None,
        memory_mb: int = 512,
        cpu_s: float = 60.0,
    ) -> None:
        self._pool, self._memory_mb, self._cpu_s = pool, memory_mb, cpu_s
        self._first = self._job(files, timeout_s=60.0)
        self._lock = threading.Lock()
        self._living: Living | None = None
        self._closed = False
        pool.admit(self)

    def run(
        self, code: str, *, timeout_s: float = 10.0, files: Mapping[str, str | bytes] | None = None, cancel_fd: int = -1
    ) -> Piece:
        """Run a piece of code. If its last statement is an expression, the value is printed.

        Args:
            code: statements of Python.
            timeout_s: seconds of wall clock.
            files: files that are written to the work folder first.
            cancel_fd: a descriptor. If it becomes readable, the session is ended.
        """
        given = dict(self._job(files, timeout_s=timeout_s).files)
        request = {"do": "run", "code": code, "files": given, "timeout_s": timeout_s}
        with self._lock:
            living = self._alive()
            mark = living.mark()
            ended, watch, reply, seconds = living.ask(request, timeout_s=timeout_s, cancel_fd=cancel_fd)
            blame = living.blame(mark)
            status = reply.get("status") if reply else None
            if reply is None or not isinstance(status, int):
                status, ended = self._end(), "time" if ended == "itself" and seconds > timeout_s else ended
                return Piece(execution=_died(ended, status, watch, seconds, blame), state="lost")
        before = reply.get("lost") is True
        if before and reply.get("timed_out") is True:
            ended = "time"
        done = execution(ended, status, watch, seconds, blame=blame if status != 0 else "nobody")
        return Piece(execution=done, state="before" if before else "kept")

    async def arun(
        self, code: str, *, timeout_s: float = 10.0, files: Mapping[str, str | bytes] | None = None
    ) -> Piece:
        """Like `run`, without blocking the event loop. If the call is cancelled, the session is lost."""
        return await in_thread(
            self._pool.threads,
            lambda cancel_fd: self.run(code, timeout_s=timeout_s, files=files, cancel_fd=cancel_fd),
        )

    def files(self, *, most: int = MEGABYTE) -> dict[str, bytes]:
        """The regular files of the work folder, up to `most` bytes in all. Links and hidden folders are left out.

        Raises: PalaestraError, if the session does not answer. It is then lost.
        """
        with self._lock:
            living, reply = self._alive(), None
            with contextlib.suppress(OSError):
                living.send({"do": "files", "most": most})
                reply = living.receive(10.0)
            found = told_files(reply, most=most)
            if found is None:
                self._end()
                raise PalaestraError(
                    where="Session.files",
                    what="the session gave no list of its files and was ended.",
                    remedy="Run the code again. The next piece starts a new session.",
                )
        return found

    def close(self) -> None:
        """End the processes of the session and free its place. Closing twice does nothing."""
        with self._lock:
            self._end()
            if not self._closed:
                self._closed = True
                self._pool.dismiss(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> Living:
        if self._closed:
            raise PalaestraError(where="Session", what="the session is closed.", remedy="Make a new Session.")
        if self._living is None:
            self._living = Living.start(self._pool, self._first)
        return self._living

    def _end(self) -> int | None:
        living, self._living = self._living, None
        return living.end() if living else None

    def _job(self, files: Mapping[str, str | bytes] | None, *, timeout_s: float) -> Job:
        return job(
            ["python"],
            stdin="",
            files=files,
            timeout_s=timeout_s,
            memory_mb=self._memory_mb,
            cpu_s=self._cpu_s,
            network="none",
            bounds=self._pool.bounds,
        )


def _died(ended: Ended, status: int | None, watch: Watch, seconds: float, blame: Blame) -> Execution:
    """The result of a piece with which the session died."""
    if ended != "itself" or blame != "nobody":
        return execution(ended, -9, watch, seconds, blame=blame)
    worker = status is None
    return Execution(
        rc=None if worker else status,
        out=watch.out.text,
        err=watch.err.text,
        killed_by="worker" if worker else "signal",
        truncated=watch.out.truncated or watch.err.truncated,
        seconds=seconds,
    )
