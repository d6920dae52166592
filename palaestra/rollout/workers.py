"""Worker processes for environments that compute, leak or hang: a hung one is killed and its worker restarted.

Knows the Environment protocol and pipes. Knows nothing of agents or policies.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from palaestra.data import Action, StepResult, Task
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.rollout.hosts import failure, hung, no_expert


def _serve(make: Callable[[], Any], pipe: Connection) -> None:
    """The worker's loop: one message is (number, call, arguments), the answer (number, fine, result)."""
    environments: dict[int, Any] = {}
    while True:
        try:
            number, call, arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if call == "open":
                environments[number] = make()
                result: Any = tuple(environments[number].agents)
            elif call == "close":
                result = environments.pop(number).close()
            elif call == "expert" and not hasattr(environments[number], "expert"):
                raise no_expert(type(environments[number]).__name__)
            else:
                result = getattr(environments[number], call)(*arguments)
            pipe.send((number, True, result))
        except KeyboardInterrupt:
            return
        except Exception as error:
            pipe.send((number, False, _portable(error)))


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error


class Worker:
    """One process that hosts several environments and answers calls in order."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._context = multiprocessing.get_context("spawn")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.load = 0
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(self._make, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answers arrive through this event loop from now on."""
        self._loop = loop
        loop.add_reader(self._pipe.fileno(), self._arrived)

    def detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pipe.fileno())
        self._loop = None

    def _arrived(self) -> None:
        try:
            number, fine, result = self._pipe.recv()
        except (EOFError, OSError):
            self.restart(RuntimeError("its worker process died"))
            return
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            if fine:
                future.set_result(result)
            else:
                future.set_exception(result)

    async def call(self, number: int, call: str, *arguments: Any) -> Any:
        """Ask environment `number`; one call of an environment at a time."""
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = future
        self._pipe.send((number, call, arguments))
        return await future

    def restart(self, reason: Exception) -> None:
        """Kill the process; whatever waits for it fails with `reason`."""
        loop = self._loop
        self.detach()
        self._process.kill()
        self._process.join()
        self._pipe.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(reason)
        self._start()
        if loop is not None:
            self.attach(loop)

    def stop(self) -> None:
        """End the process."""
        self.detach()
        self._pipe.close()
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class WorkerPool:
    """A fixed number of workers; a new environment goes to the one with the fewest."""

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self._workers = [Worker(make) for _ in range(count)]
        self._numbers = itertools.count()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        for worker in self._workers:
            worker.attach(loop)

    def detach(self) -> None:
        for worker in self._workers:
            worker.detach()

    async def open(self, name: str, seconds: float | None) -> ProcessHost:
        """A new environment somewhere in the pool."""
        worker = min(self._workers, key=lambda w: w.load)
        worker.load += 1
        host = ProcessHost(name, worker, next(self._numbers), seconds)
        host.agents = await host.ask("open")
        return host

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


class ProcessHost:
    """One environment in a worker process."""

    def __init__(self, name: str, worker: Worker, number: int, seconds: float | None) -> None:
        self._name, self._worker, self._number, self._seconds = name, worker, number, seconds
        self.agents: tuple[str, ...] = ()
        self._gone = False

    async def ask(self, call: str, *arguments: Any) -> Any:
        try:
            return await asyncio.wait_for(self._worker.call(self._number, call, *arguments), self._seconds)
        except TimeoutError:
            self._gone = True
            reason = hung(self._name, call, self._seconds or 0.0)
            self._worker.restart(
                EpisodeFailure(
                    boundary="environment",
                    where=f"environment {self._name}",
                    what="its worker process was restarted because another episode's environment hung in it.",
                )
            )
            raise reason from None
        except asyncio.CancelledError:
            self._gone = True
            raise
        except Exception as error:
            self._gone = not isinstance(error, PalaestraError) or self._gone
            raise failure(self._name, call, error) from error

    async def reset(self, task: Task) -> StepResult:
        return await self.ask("reset", task)  # type: ignore[no-any-return]

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        return await self.ask("step", actions)  # type: ignore[no-any-return]

    async def expert(self, agent: str) -> Action:
        return await self.ask("expert", agent)  # type: ignore[no-any-return]

    async def close(self) -> None:
        self._worker.load -= 1
        if not self._gone:
            await self.ask("close")
