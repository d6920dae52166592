"""Vectorized environments: copies of one environment that are stepped together, each in a slot.

An error of an environment becomes an EpisodeFailure of its slot. The other slots continue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import abilities_of, has
from palaestra.errors import ContractError, EpisodeFailure, ends_run
from palaestra.rollout.hosts import failure, no_expert, no_snapshot, refuse_missing
from palaestra.rollout.results import agents_of

Arrival = StepResult | EpisodeFailure


class Slots(Protocol):
    """Environments by slot number."""

    def agents(self, slot: int) -> tuple[str, ...]: ...
    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]: ...
    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]: ...
    def expert(self, slot: int, agent: str) -> Action: ...
    def snapshot(self, slot: int) -> Any: ...
    def restore(self, slot: int, state: Any) -> None: ...
    def close(self) -> None: ...


class SeparateSlots:
    """One environment object for each slot. A slot uses it for many episodes, and slots are stepped one by one."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name, self._make = name, make
        self._environments: dict[int, Any] = {}
        self._abilities: frozenset[str] = frozenset()  # of each environment; empty until the first is made
        self._unreadable: dict[int, EpisodeFailure] = {}  # slots whose environment has no readable agents

    def agents(self, slot: int) -> tuple[str, ...]:
        """Names of the environment's agents; none if it cannot be made. `reset` then reports the error."""
        try:
            environment = self._open(slot)
        except EpisodeFailure:
            return ()
        try:
            return agents_of(environment)
        except BaseException as error:
            self._discard(slot)
            self._unreadable[slot] = _caused(self._name, "agents", error)
            return ()

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]:
        """Start one task in each of these slots."""
        return {slot: self._reset(slot, task) for slot, task in tasks.items()}

    def _reset(self, slot: int, task: Task) -> Arrival:
        unreadable = self._unreadable.pop(slot, None)
        return self._call(slot, "reset", task) if unreadable is None else unreadable

    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]:
        """Act in each of these slots."""
        return {slot: self._call(slot, "step", actions) for slot, actions in moves.items()}

    def expert(self, slot: int, agent: str) -> Action:
        """The expert's action in this slot. Raises: EpisodeFailure."""
        return self._ability(slot, "expert", agent)  # type: ignore[no-any-return]

    def snapshot(self, slot: int) -> Any:
        """The state of this slot's environment. Raises: EpisodeFailure."""
        return self._ability(slot, "snapshot")

    def restore(self, slot: int, state: Any) -> None:
        """Put this slot's environment back. Raises: EpisodeFailure."""
        self._ability(slot, "restore", state)

    def close(self) -> None:
        """Close all environments."""
        for slot in list(self._environments):
            self._discard(slot)

    def _open(self, slot: int) -> Any:
        if slot not in self._environments:
            try:
                made = self._make()
                self._abilities = abilities_of(made)
            except BaseException as error:
                raise failure(self._name, "constructor", error) from error
            if inspect.iscoroutinefunction(made.step):
                raise self._asynchronous()
            self._environments[slot] = made
        return self._environments[slot]

    def _call(self, slot: int, call: str, argument: Any) -> Arrival:
        try:
            environment = self._open(slot)
        except EpisodeFailure as error:
            return error
        try:
            return getattr(environment, call)(argument)  # type: ignore[no-any-return]
        except BaseException as error:
            self._discard(slot)  # its state is unknown after an error
            return _caused(self._name, call, error)

    def _ability(self, slot: int, name: str, *arguments: Any) -> Any:
        refuse_missing(self._name, name, self._abilities)
        try:
            return getattr(self._environments[slot], name)(*arguments)
        except BaseException as error:
            raise failure(self._name, name, error) from error

    def _discard(self, slot: int) -> None:
        if slot in self._environments:
            _close_quietly(self._environments.pop(slot))

    def _asynchronous(self) -> ContractError:
        return ContractError(
            where=f"environment {self._name}",
            what="its `step` is async, and the vector runner steps all slots in one thread.",
            remedy="Set `rollout.runner: episodes`.",
        )


class VectorSlots:
    """The copies inside one Gymnasium vector environment. One call steps all of them.

    Observations are the rows as flat float32 vectors. Info has `score`, the sum of rewards, and the numbers and flags
    that the environment reports, such as `success`. Copies without an episode are stepped too, and their results are
    ignored. If the call raises, the episodes of all slots fail, and a new environment is made.
    """

    def __init__(self, name: str, agent: str, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        """Raises: ContractError, if copies reset themselves, since their episodes would not have the tasks' seeds;
        EpisodeFailure, if the vector environment cannot be made."""
        self._name, self._agent, self._make = name, agent, make
        self._environment = self._opened()
        self._count = self._environment.num_envs
        self._over = np.ones(self._count, bool)  # copies that must be reset before they are stepped
        self._score = np.zeros(self._count)
        self._begun: set[int] = set()  # slots whose episode began in the present vector environment
        if self._environment.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
            raise ContractError(
                where=f"environment {name}, vector_environment",
                what=f"its autoreset mode is {self._environment.metadata.get('autoreset_mode')}.",
                remedy="Make it with autoreset_mode=AutoresetMode.DISABLED. The runner resets each copy with its task.",
            )

    def agents(self, slot: int) -> tuple[str, ...]:
        """The name of the only agent."""
        return (self._agent,)

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]:
        """Reset these copies with their tasks' seeds."""
        seeds = {slot: task.seed for slot, task in tasks.items()}
        try:
            vectors, info = self._reset(seeds)
            self._begun |= tasks.keys()
            return {
                slot: StepResult(observations=self._observe(vectors, slot), info=self._info(info, slot))
                for slot in tasks
            }
        except BaseException as error:
            return self._broken("reset", tasks, error)

    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]:
        """Step all copies. Copies without an episode take the action 0."""
        lost: dict[int, Arrival] = {slot: self._lost() for slot in moves if slot not in self._begun}
        begun = {slot: actions for slot, actions in moves.items() if slot in self._begun}
        return lost | (self._step(begun) if begun else {})

    def _step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]:
        try:
            space: Any = self._environment.action_space
            taken = np.zeros(space.shape, space.dtype)
            for slot, actions in moves.items():
                taken[slot] = actions[self._agent].value
            if self._over.any():
                self._reset(dict.fromkeys(np.flatnonzero(self._over).tolist(), 0))
            first = int(getattr(self._environment.single_action_space, "start", 0))
            vectors, reward, terminated, truncated, info = self._environment.step(taken + first)
            self._over = terminated | truncated
            self._score += reward
            return {
                slot: StepResult(
                    observations={} if self._over[slot] else self._observe(vectors, slot),
                    rewards={self._agent: float(reward[slot])},
                    terminated=frozenset({self._agent} if terminated[slot] else ()),
                    truncated=frozenset({self._agent} if truncated[slot] else ()),
                    last=self._observe(vectors, slot) if truncated[slot] else {},
                    info=self._info(info, slot),
                )
                for slot in moves
            }
        except BaseException as error:
            return self._broken("step", moves, error)

    def expert(self, slot: int, agent: str) -> Action:
        """Raises: EpisodeFailure, since a vector environment has no expert."""
        raise no_expert(self._name)

    def snapshot(self, slot: int) -> Any:
        """Raises: EpisodeFailure, since a single copy has no snapshot."""
        raise no_snapshot(self._name)

    def restore(self, slot: int, state: Any) -> None:
        """Raises: EpisodeFailure, since a single copy cannot be restored."""
        raise no_snapshot(self._name)

    def close(self) -> None:
        """Close all copies."""
        _close_quietly(self._environment)

    def _lost(self) -> EpisodeFailure:
        return EpisodeFailure(
            boundary="environment",
            where=f"environment {self._name}, vector_environment",
            what="its copies ended with an error of another one, and this episode with them.",
        )

    def _opened(self) -> Any:
        """A new vector environment. Raises: EpisodeFailure."""
        try:
            return self._make()
        except BaseException as error:
            raise failure(self._name, "vector_environment", error) from error

    def _reset(self, seeds: Mapping[int, int]) -> tuple[Any, dict[str, Any]]:
        if self._environment is None:
            self._environment = self._opened()
        mask = np.zeros(self._count, bool)
        mask[list(seeds)] = True
        self._score[mask], self._over[mask] = 0.0, False
        chosen = [seeds.get(slot) for slot in range(self._count)]
        return self._environment.reset(seed=chosen, options={"reset_mask": mask})  # type: ignore[arg-type]

    def _observe(self, vectors: Any, slot: int) -> dict[str, Observation]:
        return {self._agent: Observation(vector=np.array(vectors[slot], np.float32).reshape(-1))}

    def _info(self, info: Mapping[str, Any], slot: int) -> dict[str, Any]:
        given = {
            key: info[key][slot].item()
            for key in info
            if f"_{key}" in info and info[f"_{key}"][slot] and _plain(info[key])
        }
        return {**given, "score": float(self._score[slot])}

    def _broken(self, call: str, slots: Mapping[int, Any], error: BaseException) -> dict[int, Arrival]:
        failures: dict[int, Arrival] = {slot: _caused(self._name, call, error) for slot in slots}
        _close_quietly(self._environment)
        self._environment = None  # the next `reset` makes a new one
        self._begun.clear()
        self._over, self._score = np.ones(self._count, bool), np.zeros(self._count)
        return failures


def open_slots(name: str, make: Callable[[], Any], count: int) -> SeparateSlots | VectorSlots:
    """Slots for `count` episodes: the copies of a vector environment if possible, and otherwise one object each.

    A vector environment is possible if the environment has one agent and the ability `vector_environment`.
    """
    try:
        environment = make()
        agents = agents_of(environment)
        vectorized = has(environment, "vector_environment") and len(agents) == 1
    except BaseException as error:
        if ends_run(error):
            raise
        return SeparateSlots(name, make)  # they report the error for each episode
    if vectorized:
        return VectorSlots(name, agents[0], lambda: environment.vector_environment(count))
    _close_quietly(environment)
    return SeparateSlots(name, make)


def _close_quietly(environment: Any) -> None:
    try:
        environment.close()
    except BaseException as error:
        if ends_run(error):
            raise  # any other adds nothing: the episode is recorded already


def _plain(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 1


def _caused(name: str, call: str, error: BaseException) -> EpisodeFailure:
    fault = failure(name, call, error)
    if fault is not error:
        fault.__cause__ = error
    return fault
