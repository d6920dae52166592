"""Machines: pools of warm Python interpreters that all episodes of a process share, with a cache of results."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import Literal

from palaestra.envs.worlds.code.judging import Job
from palaestra.errors import PalaestraError, RecipeError
from palaestra.tools.sandbox import BubblewrapSandbox, Execution, PythonPool

Where = Literal["auto", "bubblewrap", "subprocess"]
Backend = Literal["bubblewrap", "subprocess"]
Require = Literal["isolation", "none"]
KEPT = 4096  # results in the cache


@functools.cache
def backend(where: Where, require: Require) -> Backend:
    """The back end for these options. It always has the isolation that is required.

    Raises: RecipeError, if this computer has no such back end.
    """
    if where == "subprocess" and require == "isolation":
        raise RecipeError(
            where="environment: code, sandbox",
            what="`sandbox: subprocess` does not isolate: submitted code could read hidden tests and your files.",
            remedy="Set `sandbox: auto` or, for code that you trust, `require: none`.",
        )
    if where == "subprocess":
        return "subprocess"
    try:
        BubblewrapSandbox().close()
    except PalaestraError as fault:
        if where == "auto" and require == "none":
            return "subprocess"
        raise RecipeError(
            where="environment: code, sandbox",
            what=f"submitted code cannot be isolated on this computer. {fault.what}",
            remedy=f"{fault.remedy} Or set `style: expression`, which needs no sandbox, or, for code that you trust,\n"
            "`require: none`.",
        ) from fault
    return "bubblewrap"


class Machine:
    """A pool of interpreters with a cache: a job whose result is known does not run again.

    Args:
        backend: the sandbox in which jobs run.
        workers: number of warm interpreters.
    """

    def __init__(self, backend: Backend, workers: int) -> None:
        self.pool = PythonPool(backend=backend, workers=workers, parallel=4 * workers)
        self.users = 0
        self.ran = 0  # jobs that were not in the cache
        self._known: OrderedDict[tuple[Job, float, int], Execution] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, job: Job, *, timeout_s: float, memory_mb: int) -> Execution:
        """The result of a job. It may take up to `timeout_s` seconds."""
        key = (job, timeout_s, memory_mb)
        done = self._recall(key)
        if done is None:
            files = dict(job.files)
            done = self.pool.run(job.code, stdin=job.stdin, files=files, timeout_s=timeout_s, memory_mb=memory_mb)
            self._keep(key, done)
        return done

    async def arun(self, job: Job, *, timeout_s: float, memory_mb: int) -> Execution:
        """As `run`, but other episodes go on while the job runs."""
        key = (job, timeout_s, memory_mb)
        done = self._recall(key)
        if done is None:
            files = dict(job.files)
            done = await self.pool.arun(
                job.code, stdin=job.stdin, files=files, timeout_s=timeout_s, memory_mb=memory_mb
            )
            self._keep(key, done)
        return done

    def _recall(self, key: tuple[Job, float, int]) -> Execution | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _keep(self, key: tuple[Job, float, int], done: Execution) -> None:
        with self._lock:
            self.ran += 1
            if done.killed_by is None:  # limits depend on how busy the machine is
                self._known[key] = done
            while len(self._known) > KEPT:
                self._known.popitem(last=False)


_MACHINES: dict[tuple[Backend, int], Machine] = {}
_LOCK = threading.Lock()


def borrow(backend: Backend, workers: int) -> Machine:
    """The shared machine of this kind. Call `give_back` when it is no longer needed."""
    with _LOCK:
        machine = _MACHINES.get((backend, workers))
        if machine is None:
            machine = _MACHINES[backend, workers] = Machine(backend, workers)
        machine.users += 1
        return machine


def give_back(machine: Machine) -> None:
    """Say that a machine is no longer needed. When the last user says so, its processes end."""
    with _LOCK:
        machine.users -= 1
        if machine.users:
            return
        for key in [key for key, one in _MACHINES.items() if one is machine]:
            del _MACHINES[key]
    machine.pool.close()
