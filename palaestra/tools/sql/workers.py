"""The processes that run SQL statements. A process that is too late is killed, and another one takes its place."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.processes import clean_environment
from palaestra.tools.sandbox.watching import readable

INSIDE = Path(__file__).with_name("inside.py")
MOST_IDLE = 8


class Died(Exception):
    """The process gave no answer. `late`: it took too long and was killed."""

    def __init__(self, *, late: bool) -> None:
        super().__init__("late" if late else "died")
        self.late = late


class Worker:
    """One process. `holds` says what it was told to open last.

    Raises: PalaestraError, if the process cannot be started.
    """

    def __init__(self) -> None:
        self.holds: object = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(INSIDE)],
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
                where="tool: sql",
                what=f"the process for SQL cannot be started: {fault}.",
                remedy="Check this machine's limits of processes and open files.",
            ) from fault
        ALL.add(self)

    def ask(self, request: Mapping[str, Any], *, wait_s: float) -> dict[str, Any]:
        """The answer to a request.

        Raises: Died, if there is none within `wait_s` seconds. The process is then killed.
        """
        assert self._process.stdin and self._process.stdout
        until, told = time.monotonic() + wait_s, bytearray()
        with contextlib.suppress(OSError):
            line = json.dumps(dict(request)).encode() + b"\n"
            while line:
                line = line[self._process.stdin.write(line) :]
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


ALL: weakref.WeakSet[Worker] = weakref.WeakSet()
IDLE: list[Worker] = []
LOCK = threading.Lock()


def take(wanted: object) -> Worker:
    """A process that nobody else uses: one that holds what is wanted, another idle one, or a new one."""
    with LOCK:
        for worker in IDLE:
            if not worker.alive:
                worker.kill()
        IDLE[:] = [worker for worker in IDLE if worker.alive]
        if IDLE:
            place = next((place for place, worker in enumerate(IDLE) if worker.holds == wanted), 0)
            return IDLE.pop(place)
    return Worker()


def give(worker: Worker) -> None:
    """Give a process back that was taken."""
    with LOCK:
        if worker.alive and len(IDLE) < MOST_IDLE:
            IDLE.append(worker)
            return
    worker.kill()


def end_all() -> None:
    """End all processes, at the end of this one."""
    for worker in list(ALL):
        with contextlib.suppress(OSError):
            worker.kill()


def _forked() -> None:
    """In a process that was forked: the processes belong to its parent."""
    global LOCK
    LOCK = threading.Lock()
    IDLE.clear()
    for worker in list(ALL):
        worker.forget()


atexit.register(end_all)
os.register_at_fork(after_in_child=_forked)
