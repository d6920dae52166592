"""Hosts run an environment in the event loop, in a thread, or in a worker process.

A host turns any error of an environment, and a call that does not return in time, into an EpisodeFailure of the
boundary "environment".
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from palaestra.data import Action, StepResult, Task
from palaestra.data.abilities import abilities_of
from palaestra.errors import EpisodeFailure, MissingExtra, PalaestraError, described, ends_run
from palaestra.rollout.faults import current_task, is_ended
from palaestra.rollout.results import agents_of
from palaestra.tools.threads import Late, Threads

if TYPE_CHECKING:  # worker processes import this module and need no torch
    from palaestra.boundary.process import Lent

CLOSING = 60.0  # seconds that `close` may take in a thread if `rollout.step_seconds` sets no limit


class Host(Protocol):
    """One environment for one episode."""

    agents: tuple[str, ...]

    async def reset(self, task: Task) -> StepResult: ...
    async def step(self, actions: Mapping[str, Action]) -> StepResult: ...
    async def expert(self, agent: str) -> Action: ...
    async def snapshot(self) -> Any: ...
    async def restore(self, state: Any) -> None: ...
    async def close(self) -> None: ...


def failure(name: str, call: str, error: BaseException) -> EpisodeFailure:
    """Turn an error of an environment into an EpisodeFailure.

    Raises: MissingExtra, if the error is one, since all episodes need the package; an error that ends the run.
    """
    if isinstance(error, MissingExtra) or ends_run(error):
        raise error
    if isinstance(error, EpisodeFailure):
        return error
    what = error.what if isinstance(error, PalaestraError) else described(error)
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}, {call}",
        what=what,
        remedy="Run palaestra.testing.check_environment on it; failed episodes are kept out of the update.",
    )


def hung(name: str, call: str, seconds: float) -> EpisodeFailure:
    """The failure of a call that did not return in time."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}, {call}",
        what=f"it did not return within {seconds:g} s (rollout.step_seconds).",
        remedy="Raise `rollout.step_seconds` if the environment is only slow.",
    )


def no_expert(name: str) -> EpisodeFailure:
    """The failure of asking an environment without an expert for its action."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}",
        what="it has no expert.",
        remedy="Give it a method `expert(agent) -> Action`, or train without `warm_start`.",
    )


def no_snapshot(name: str) -> EpisodeFailure:
    """The failure of branching off in an environment without snapshots."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}",
        what="it cannot be put back into an earlier state, so no episode can branch off from another one.",
        remedy="Give it methods `snapshot() -> state` and `restore(state)`, or leave out the strategy that branches.",
    )


NEEDS = {"expert": "expert", "snapshot": "snapshot", "restore": "snapshot"}  # call → the ability that it needs


def refuse_missing(name: str, call: str, abilities: frozenset[str]) -> None:
    """Refuse a call whose ability the environment lacks. Raises: EpisodeFailure."""
    if call in NEEDS and NEEDS[call] not in abilities:
        raise no_expert(name) if NEEDS[call] == "expert" else no_snapshot(name)


class InlineCalls:
    """Runs calls in the event loop, for environments that answer in well under a millisecond.

    Args:
        lent: lends the environment the process; None: what it changes there stays.
    """

    def __init__(self, name: str, environment: Any, lent: Lent | None = None) -> None:
        self._name, self._environment, self._lent = name, environment, lent

    async def __call__(self, call: str, *arguments: Any) -> Any:
        lent = self._lent
        try:
            if lent is not None:
                lent.begin()
            try:
                result = getattr(self._environment, call)(*arguments)
            finally:
                if lent is not None:
                    lent.end()
            if not inspect.isawaitable(result):
                return result
        except BaseException as error:  # nothing was awaited, so that nobody can have canceled the call
            raise failure(self._name, call, error) from error
        task = current_task()
        try:
            with nullcontext() if lent is None else lent.awaited():
                return await result
        except BaseException as error:
            if is_ended(error, task):
                raise
            raise failure(self._name, call, error) from error


@dataclass(slots=True, eq=False)
class _ThreadCall:
    """One call of a method in a thread. It can be canceled until it starts."""

    method: Callable[..., Any]
    arguments: tuple[Any, ...]
    begun: bool = False
    over: bool = False
    called_off: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> Any:
        with self.lock:
            if self.called_off:
                return None
            self.begun = True
        try:
            return self.method(*self.arguments)
        finally:
            self.over = True

    def call_off(self) -> bool:
        """Cancel the call. Returns whether it has started and still runs."""
        with self.lock:
            self.called_off = True
            return self.begun and not self.over


class ThreadCalls:
    """Runs calls in shared threads, for environments that wait (tools, network, sleep).

    A call fails `seconds` after its start; the time until a thread is free does not count. Coroutine methods run in the
    event loop, with the same limit.
    """

    def __init__(self, name: str, environment: Any, threads: Threads, seconds: float | None) -> None:
        self._name, self._environment, self._threads, self._seconds = name, environment, threads, seconds
        self._inline = InlineCalls(name, environment)
        self._abandoned = False

    async def __call__(self, call: str, *arguments: Any) -> Any:
        if self._abandoned:
            return None  # a thread cannot be killed and may still use the environment
        method: Callable[..., Any] | None = getattr(self._environment, call, None)
        if method is None or inspect.iscoroutinefunction(method):
            return await self._in_the_loop(call, *arguments)
        return await self._in_a_thread(call, _ThreadCall(method, arguments))

    async def _in_the_loop(self, call: str, *arguments: Any) -> Any:
        limit = self._limit(call)
        try:
            async with asyncio.timeout(limit):
                return await self._inline(call, *arguments)
        except TimeoutError:  # one of the environment's own is an EpisodeFailure by now
            raise hung(self._name, call, limit or 0.0) from None

    async def _in_a_thread(self, call: str, work: _ThreadCall) -> Any:
        limit = self._limit(call)
        try:
            return await self._threads.run(work, limit)
        except Late as error:
            self._abandoned = work.call_off()
            if not work.begun:  # too many others hang
                raise failure(self._name, call, error) from error
            raise hung(self._name, call, limit or 0.0) from None
        except asyncio.CancelledError:  # one that the method raised itself is another error by now
            self._abandoned = work.call_off()
            raise
        except BaseException as error:
            raise failure(self._name, call, error) from error

    def _limit(self, call: str) -> float | None:
        return CLOSING if call == "close" and self._seconds is None else self._seconds


class LocalHost:
    """An environment in this process. `calls` runs its methods, in the event loop or in a thread."""

    def __init__(self, name: str, environment: Any, calls: Callable[..., Awaitable[Any]]) -> None:
        """Raises: EpisodeFailure, for an environment whose agents or abilities cannot be read."""
        try:
            self.agents, self.abilities = agents_of(environment), abilities_of(environment)
        except BaseException as error:
            raise failure(name, "agents", error) from error
        self._name, self._call = name, calls

    async def reset(self, task: Task) -> StepResult:
        return await self._call("reset", task)  # type: ignore[no-any-return]

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        return await self._call("step", actions)  # type: ignore[no-any-return]

    async def expert(self, agent: str) -> Action:
        refuse_missing(self._name, "expert", self.abilities)
        return await self._call("expert", agent)  # type: ignore[no-any-return]

    async def snapshot(self) -> Any:
        refuse_missing(self._name, "snapshot", self.abilities)
        return await self._call("snapshot")

    async def restore(self, state: Any) -> None:
        refuse_missing(self._name, "restore", self.abilities)
        await self._call("restore", state)

    async def close(self) -> None:
        await self._call("close")
