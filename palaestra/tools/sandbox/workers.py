"""Processes that answer requests within a time: for what a text of a model could make endless or too large.

A process that is too late is killed, and another one takes its place. It has limits, and no isolation: what it runs is
our own code.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.processes import clean_environment
from palaestra.tools.sandbox.watching import readable

MOST_IDLE = 8


class Died(Exception):
    """The process gave no answer. `late`: it took too long and was killed."""

    def __init__(self, *, late: bool) -> None:
        super().__init__("late" if late else "died")
        self.late = late


class Worker:
    """One process. `holds` says what it was told last to keep ready.

    Raises: PalaestraError, if the process cannot be started.
    """

    def __init__(self, command: Sequence[str], *, where: str) -> None:
        self.holds: object = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env=clean_environment({"TZ": "UTC"}, home="/"),
                start_new_session=True,  # an interruption by the keyboard must not reach it
            )
        except OSError as fault:
            raise PalaestraError(
                where=where,
                what=f"its process cannot be started: {fault}.",
                remedy="Check this machine's limits of processes and open files.",
            ) from fault
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)  # a process that does not read must not hold this one
        ALL.add(self)

    def ask(self, request: Mapping[str, Any], *, wait_s: float) -> dict[str, Any]:
        """The answer to a request.

        Raises: Died, if there is none within `wait_s` seconds. The process is then killed.
        """
        assert self._process.stdin and self._process.stdout
        until, told = time.monotonic() + wait_s, bytearray()
        with contextlib.suppress(OSError):
            self._write(json.dumps(dict(request)).encode() + b"\n", until)
            while (left := until - time.monotonic()) > 0:
                if not readable(self._process.stdout.fileno(), left):
                    break
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                told += chunk
                if told.endswith(b"\n"):
                    answer: dict[str, Any] = json.loads(told)
                    return answer
                if not chunk:
                    break
        late = time.monotonic() >= until
        self.kill()
        raise Died(late=late)

    def _write(self, line: bytes, until: float) -> None:
        """Raises: TimeoutError, if the process does not read it in time."""
        assert self._process.stdin
        waiting, handle = select.poll(), self._process.stdin.fileno()
        waiting.register(handle, select.POLLOUT)
        while line:
            left = until - time.monotonic()
            if left <= 0 or not waiting.poll(1000 * left):
                raise TimeoutError
            line = line[os.write(handle, line) :]

    def kill(self) -> None:
        """End the process, and close its pipes."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Close the pipes. The process ends by that if no other process has them."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        if self._process.returncode is None:
            self._process.returncode = 0  # it is the child of another process, which waits for it
        ALL.discard(self)

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as is known."""
        return self._process.poll() is None


class Workers:
    """Processes of one program, for all threads. Those that are idle are used again.

    The program reads requests from standard input and writes an answer to each, as lines of JSON. It ends when standard
    input does.

    Args:
        command: what Python is started with, such as a file. where: the part of errors that names who needs them.
    """

    def __init__(self, command: Sequence[str], *, where: str) -> None:
        self._command, self._where = tuple(command), where
        self.idle: list[Worker] = []
        self._lock = threading.Lock()
        POOLS.add(self)

    def take(self, wanted: object = None) -> Worker:
        """A process that nobody else uses: one that holds what is wanted, another idle one, or a new one."""
        with self._lock:
            for worker in self.idle:
                if not worker.alive:
                    worker.kill()
            self.idle[:] = [worker for worker in self.idle if worker.alive]
            if self.idle:
                place = next((place for place, worker in enumerate(self.idle) if worker.holds == wanted), 0)
                return self.idle.pop(place)
        return Worker(self._command, where=self._where)

    def give(self, worker: Worker) -> None:
        """Give a process back that was taken."""
        with self._lock:
            if worker.alive and len(self.idle) < MOST_IDLE:
                self.idle.append(worker)
                return
        worker.kill()

    def lose(self) -> None:
        """In a process that was forked: the processes belong to its parent."""
        self._lock = threading.Lock()
        self.idle.clear()


ALL: weakref.WeakSet[Worker] = weakref.WeakSet()
POOLS: weakref.WeakSet[Workers] = weakref.WeakSet()


def end_all() -> None:
    """End all processes, at the end of this one."""
    for worker in list(ALL):
        with contextlib.suppress(OSError):
            worker.kill()


def _forked() -> None:
    for pool in list(POOLS):
        pool.lose()
    for worker in list(ALL):
        worker.forget()


atexit.register(end_all)
os.register_at_fork(after_in_child=_forked)
