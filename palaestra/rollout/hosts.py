"""Hosts: where an environment runs: in the event loop, in a thread, or in a worker process.

A host turns whatever an environment raises, and a step that never returns, into an EpisodeFailure of the
boundary "environment". Knows the Environment protocol. Knows nothing of agents or policies.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from palaestra.data import Action, StepResult, Task
from palaestra.errors import EpisodeFailure, PalaestraError


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
    """What an environment raised, as a failure of its boundary."""
    if isinstance(error, EpisodeFailure):
        return error
    what = error.what if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}, {call}",
        what=what,
        remedy="Run palaestra.testing.check_environment on it; failed episodes are kept out of the update.",
    )


def hung(name: str, call: str, seconds: float) -> EpisodeFailure:
    """A call that did not return in time."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}, {call}",
        what=f"it did not return within {seconds:g} s (rollout.step_seconds).",
        remedy="Raise `rollout.step_seconds` if it is only slow.",
    )


def no_expert(name: str) -> EpisodeFailure:
    """Somebody asked for an expert that the environment does not have."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}",
        what="it has no expert.",
        remedy="Give it a method `expert(agent) -> Action`, or train without `warm_start`.",
    )


def no_snapshot(name: str) -> EpisodeFailure:
    """Somebody wanted to branch off from an environment that cannot be copied."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {name}",
        what="it cannot be put back into an earlier state, so no episode can branch off from another one.",
        remedy="Give it methods `snapshot() -> state` and `restore(state)`, or leave out the strategy that branches.",
    )


MISSING = {"expert": no_expert, "snapshot": no_snapshot, "restore": no_snapshot}  # abilities that some lack


class InlineCalls:
    """Calls run in the event loop: right for environments that answer in well under a millisecond."""

    def __init__(self, name: str, environment: Any) -> None:
        self._name, self._environment = name, environment

    async def __call__(self, call: str, *arguments: Any) -> Any:
        method = getattr(self._environment, call, None)
        if method is None and call in MISSING:
            raise MISSING[call](self._name)
        try:
            result = method(*arguments)  # type: ignore[misc]
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise failure(self._name, call, error) from error


class ThreadCalls:
    """Each call runs in a thread of a shared pool: right for environments that wait (tools, network, sleep)."""

    def __init__(self, name: str, environment: Any, pool: ThreadPoolExecutor, seconds: float | None) -> None:
        self._name, self._environment, self._pool, self._seconds = name, environment, pool, seconds
        self._inline = InlineCalls(name, environment)
        self._abandoned = False

    async def __call__(self, call: str, *arguments: Any) -> Any:
        if self._abandoned:
            return None  # a thread cannot be killed; its environment is left to it
        method: Callable[..., Any] | None = getattr(self._environment, call, None)
        if method is None or inspect.iscoroutinefunction(method):
            return await self._inline(call, *arguments)
        future = asyncio.get_running_loop().run_in_executor(self._pool, method, *arguments)
        try:
            return await asyncio.wait_for(future, self._seconds)
        except TimeoutError as error:
            self._abandoned = not future.done() or future.cancelled()
            if not self._abandoned:  # the environment itself raised it
                raise failure(self._name, call, error) from error
            raise hung(self._name, call, self._seconds or 0.0) from None
        except asyncio.CancelledError:
            self._abandoned = not future.done() or future.cancelled()
            raise
        except Exception as error:
            raise failure(self._name, call, error) from error


class LocalHost:
    """An environment in this process; `calls` decides where its methods run."""

    def __init__(self, environment: Any, calls: Callable[..., Awaitable[Any]]) -> None:
        self.agents = tuple(environment.agents)
        self._call = calls

    async def reset(self, task: Task) -> StepResult:
        return await self._call("reset", task)  # type: ignore[no-any-return]

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        return await self._call("step", actions)  # type: ignore[no-any-return]

    async def expert(self, agent: str) -> Action:
        return await self._call("expert", agent)  # type: ignore[no-any-return]

    async def snapshot(self) -> Any:
        return await self._call("snapshot")

    async def restore(self, state: Any) -> None:
        await self._call("restore", state)

    async def close(self) -> None:
        await self._call("close")
