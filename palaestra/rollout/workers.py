"""Worker processes, for environments that need a processor, leak memory or hang.

If a call of an environment hangs, its process is killed and started again. On Linux, no worker outlives the run, also
if SIGKILL ends the run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import math
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from palaestra.boundary.cleaning import clean_result
from palaestra.data import Action, StepResult, Task
from palaestra.data.abilities import abilities_of
from palaestra.errors import ContractError, described
from palaestra.process.orphans import killed_with
from palaestra.registry import user_files, user_objects
from palaestra.rollout.faults import current_task, is_ended
from palaestra.rollout.hosts import CLOSING, failure, hung, refuse_missing
from palaestra.rollout.results import agents_of

DEPTH = 4  # most messages on the way to a worker; with full pipes, both sides would wait for each other
READY = -1  # stands for an environment's number in the message that the process has imported everything


class Hung(Exception):
    """A call did not return in time."""


class Restarted(Exception):
    """The process was replaced, because another episode's environment hung or crashed in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartUp:
    """What a worker process gets at its start.

    Attributes:
        make: a pickled function that makes an environment. The process reads it after it has loaded `files`.
        objects: the pickled objects of the program, such as classes of a notebook, that recipes name.
        files: the modules that the run has loaded from a user's files. Their objects are sent in both directions.
    """

    make: bytes
    objects: bytes
    files: Mapping[str, str] = field(default_factory=user_files.user_files)


def _serve(start: _StartUp, pipe: Connection, run: Connection) -> None:
    """The loop of a worker. It reads messages (number, call, arguments) and answers with (number, fine, result, text).

    Arguments and results are pickled one by one, so that an object that cannot be read fails only its own call. `text`
    describes an exception that the other side cannot read.

    Args:
        run: the reading end of a pipe that is open as long as the run. If it closes, this process is killed.
    """
    killed_with(run.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C and then closes the pipe
    if hasattr(signal, "pthread_sigmask"):  # also if an environment sets a handler of its own
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    user_files.know_files(start.files)
    user_objects.keep(pickle.loads(start.objects))
    with suppress(Exception):  # imports everything before time limits count; `open` reports errors
        pickle.loads(start.make)
    environments: dict[int, Any] = {}
    with suppress(EOFError, OSError), asyncio.Runner() as loop:  # raised when the run closes the pipe
        pipe.send((READY, True, pickle.dumps(None), ""))
        while True:
            number, call, arguments = pipe.recv()
            try:
                result = _result(environments, start, number, call, pickle.loads(arguments))
                result = loop.run(_awaited(result)) if inspect.isawaitable(result) else result
                result = clean_result(result) if call in ("reset", "step") else result  # objects in it have no way out
                answer: tuple[Any, ...] = (True, pickle.dumps(result), "")
            except BaseException as error:  # Ctrl-C is not for this process
                answer = (False, *_portable(error))
            pipe.send((number, *answer))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _result(environments: dict[int, Any], start: _StartUp, number: int, call: str, arguments: tuple[Any, ...]) -> Any:
    """The result of one call of one environment."""
    if call == "open":
        environments[number] = pickle.loads(start.make)()
        return agents_of(environments[number]), abilities_of(environments[number]), user_files.user_files()
    if call == "close":
        return environments.pop(number).close() if number in environments else None
    return getattr(environments[number], call)(*arguments)


def _context(make: Callable[[], Any]) -> Any:
    """The way to start processes.

    If possible, a server that has imported the environment starts them, so that a killed worker is replaced in
    milliseconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_imported_for(make)])
    return context


def _imported_for(make: Callable[[], Any]) -> list[str]:
    """The modules that the server imports: the module that makes the environment.

    The server cannot import a module of a user's file, but it can import the modules that the file uses.
    """
    module = (make.func if isinstance(make, functools.partial) else make).__module__
    if module not in user_files.user_files():
        return [module]
    values = vars(sys.modules[module]).values()
    names = {value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) for value in values}
    return sorted(name for name in names if isinstance(name, str) and name not in user_files.user_files())


def _portable(error: BaseException) -> tuple[bytes, str]:
    """An exception as bytes, and as a text for a reader that cannot unpickle it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    try:
        return pickle.dumps(error), text
    except BaseException:  # pickling runs code of the error
        return pickle.dumps(RuntimeError(text)), text


def _read(fine: bool, result: bytes, text: str) -> Any:
    """The result of a call.

    Raises: what the call raised; RuntimeError, for a result or an exception that cannot be read here.
    """
    try:
        answer = pickle.loads(result)
    except BaseException as error:  # reading runs code of the object
        raise RuntimeError(text or f"the worker's answer cannot be read: {described(error)}") from error
    if fine:
        return answer
    usual = isinstance(answer, Exception) and not isinstance(answer, StopIteration)  # a future takes no StopIteration
    raise answer if usual else RuntimeError(text)


@contextmanager
def _without_main() -> Iterator[None]:
    """A context in which a new process does not run the program's own file again, as `multiprocessing` lets it.

    What a worker needs of that file is sent to it.
    """
    main = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def _sendable(thing: Any) -> bytes:
    """A function or objects as bytes, for a worker process. Raises: ContractError, if that is not possible."""
    try:
        return cloudpickle.dumps(thing)  # type: ignore[no-any-return]
    except Exception as error:
        raise ContractError(
            where="rollout.worker_kind: process",
            what=f"the function that makes the environment cannot be sent to a worker process: {error}.",
            remedy="Use a class or a function at the top of a module, or set rollout.worker_kind=thread.",
        ) from error


class Worker:
    """One process that hosts several environments and answers calls in order."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._objects = _sendable(make), _sendable(user_objects.kept())
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # in the order of sending
        self._context = _context(make)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.load, self.lives = 0, 0
        self._start()

    def _start(self) -> None:
        self.lives += 1
        self._unsent: deque[tuple[int, str, bytes]] = deque()
        self._flying = 0
        self._answered = math.inf  # time of the last answer, by the loop's clock; infinite until the process is ready
        self._pipe, theirs = self._context.Pipe()
        run, self._alive = self._context.Pipe(duplex=False)  # nobody writes into it
        start = _StartUp(make=self._make, objects=self._objects)
        self._process = self._context.Process(target=_serve, args=(start, theirs, run), daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()
        run.close()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive answers through this event loop from now on."""
        self._loop = loop
        loop.add_reader(self._pipe.fileno(), self._arrived)

    def detach(self) -> None:
        """Leave the event loop, which is about to close."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pipe.fileno())
        self._loop = None

    def _arrived(self) -> None:
        try:
            number, fine, result, text = self._pipe.recv()
        except (EOFError, OSError):
            self._blame_first(RuntimeError("its worker process died"))
            self.restart()
            return
        assert self._loop is not None
        self._answered = self._loop.time()
        self._flying -= number != READY
        self._pump()
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            try:
                future.set_result(_read(fine, result, text))
            except Exception as error:
                future.set_exception(error)

    def send(self, number: int, call: str, *arguments: Any) -> None:
        """Call environment `number` without waiting for the answer.

        Raises: any error from pickling the arguments.
        """
        self._unsent.append((number, call, pickle.dumps(arguments)))
        self._pump()

    def _pump(self) -> None:
        try:
            while self._unsent and self._flying < DEPTH:
                self._pipe.send(self._unsent.popleft())
                self._flying += 1
        except OSError:
            return  # the process died; the event loop will notice it

    async def call(self, number: int, call: str, *arguments: Any, seconds: float | None) -> Any:
        """Call environment `number` and wait for the answer. An environment has one call at a time.

        Raises: Hung, if the call takes longer than `seconds`. The start of the process and earlier calls of other
            environments do not count.
        """
        assert self._loop is not None
        future, sent = self._loop.create_future(), self._loop.time()
        self.send(number, call, *arguments)  # first: if it raises, nothing waits for an answer
        self._waiting[number] = future
        try:
            while seconds is not None and not future.done():
                left = max(sent, self._answered) + seconds - self._loop.time()
                if left <= 0 and self._is_first(number):
                    raise Hung
                await asyncio.wait((future,), timeout=min(max(left, 0.01), seconds))
            return await future
        finally:
            future.cancel()

    def _is_first(self, number: int) -> bool:
        """Whether this call is the first one that somebody still waits for."""
        return next((n for n, future in self._waiting.items() if not future.done()), number) == number

    def _blame_first(self, error: Exception) -> None:
        """Let the call on which the process was working fail with this error."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                return

    def restart(self) -> None:
        """Replace the process by a new one. Calls that still wait raise `Restarted`."""
        loop = self._loop
        self.detach()
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._alive.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Restarted())
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
        self._alive.close()


class WorkerPool:
    """A fixed number of workers. A new environment goes to the worker with the fewest environments."""

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
        """Make an environment in the pool. `seconds`: time limit of each of its calls."""
        worker = min(self._workers, key=lambda w: w.load)
        worker.load += 1
        host = ProcessHost(name, worker, next(self._numbers), seconds)
        try:
            host.agents, host.abilities, files = await host.ask("open")
            user_files.know_files(files)  # this process reads objects of these modules
        except BaseException:
            await host.close()
            raise
        return host

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


class ProcessHost:
    """One environment in a worker process.

    If the process is replaced because another environment hung or crashed in it, this environment is made again and its
    calls are repeated. The same task and the same actions lead to the same state.
    """

    def __init__(self, name: str, worker: Worker, number: int, seconds: float | None) -> None:
        self._name, self._worker, self._number, self._seconds = name, worker, number, seconds
        self._past: list[tuple[str, tuple[Any, ...]]] = []
        self._life = worker.lives
        self.agents: tuple[str, ...] = ()
        self.abilities: frozenset[str] = frozenset()

    async def ask(self, call: str, *arguments: Any) -> Any:
        """Call a method of the environment.

        Raises: EpisodeFailure with the boundary `environment`, if the call raises, hangs or cannot be sent.
        """
        self._past.append((call, arguments))
        try:
            while True:
                try:
                    return await self._answer()
                except Restarted:
                    continue
        except Hung:
            self._worker.restart()
            raise hung(self._name, call, self._seconds or 0.0) from None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise failure(self._name, call, error) from error

    async def _answer(self) -> Any:
        """The answer to the last call. In a new process, all earlier calls are repeated first."""
        known = len(self._past) - 1 if self._life == self._worker.lives else 0
        self._life = self._worker.lives
        for call, arguments in self._past[known:]:
            answer = await self._worker.call(self._number, call, *arguments, seconds=self._seconds)
        return answer

    async def reset(self, task: Task) -> StepResult:
        return await self.ask("reset", task)  # type: ignore[no-any-return]

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        return await self.ask("step", actions)  # type: ignore[no-any-return]

    async def expert(self, agent: str) -> Action:
        refuse_missing(self._name, "expert", self.abilities)
        return await self.ask("expert", agent)  # type: ignore[no-any-return]

    async def snapshot(self) -> Any:
        refuse_missing(self._name, "snapshot", self.abilities)
        return await self.ask("snapshot")

    async def restore(self, state: Any) -> None:
        refuse_missing(self._name, "restore", self.abilities)
        await self.ask("restore", state)

    async def close(self) -> None:
        """Close the environment, and wait until it has. If that takes too long, the process is replaced.

        Where the episode itself is canceled, nothing waits.
        """
        self._worker.load -= 1
        if self._life != self._worker.lives:  # the environment ended with its process
            return
        task = current_task()
        if task is None or task.cancelling():
            self._worker.send(self._number, "close")
            return
        seconds = CLOSING if self._seconds is None else self._seconds
        try:
            await self._worker.call(self._number, "close", seconds=seconds)
        except Restarted:
            return
        except Hung:
            self._worker.restart()
            raise hung(self._name, "close", seconds) from None
        except BaseException as error:
            if is_ended(error, task):
                raise
            raise failure(self._name, "close", error) from error
