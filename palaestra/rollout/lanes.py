"""Lanes: copies of one environment that are stepped together.

Knows the Environment protocol. Knows nothing of agents, policies or episodes. What an environment raises is
answered as an EpisodeFailure of that lane; the other lanes do not notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import abilities_of, has
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.rollout.hosts import failure, no_expert, no_snapshot, refuse_missing

Arrival = StepResult | EpisodeFailure


class Lanes(Protocol):
    """Environments by lane number."""

    def agents(self, lane: int) -> tuple[str, ...]: ...
    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]: ...
    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]: ...
    def expert(self, lane: int, agent: str) -> Action: ...
    def snapshot(self, lane: int) -> Any: ...
    def restore(self, lane: int, state: Any) -> None: ...
    def close(self) -> None: ...


class PlainLanes:
    """One environment object a lane, kept from episode to episode, stepped one after another."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name, self._make = name, make
        self._environments: dict[int, Any] = {}
        self._abilities: frozenset[str] = frozenset()  # of each of them, as soon as one is open

    def agents(self, lane: int) -> tuple[str, ...]:
        """Names of the environment's agents; none if it cannot be made, which `reset` will report."""
        try:
            return tuple(self._open(lane).agents)
        except EpisodeFailure:
            return ()

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]:
        """Set one task up in each of these lanes."""
        return {lane: self._call(lane, "reset", task) for lane, task in tasks.items()}

    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]:
        """Act in each of these lanes."""
        return {lane: self._call(lane, "step", actions) for lane, actions in moves.items()}

    def expert(self, lane: int, agent: str) -> Action:
        """The expert's action in this lane. Raises: EpisodeFailure."""
        return self._ability(lane, "expert", agent)  # type: ignore[no-any-return]

    def snapshot(self, lane: int) -> Any:
        """The state of this lane's environment. Raises: EpisodeFailure."""
        return self._ability(lane, "snapshot")

    def restore(self, lane: int, state: Any) -> None:
        """Put this lane's environment back. Raises: EpisodeFailure."""
        self._ability(lane, "restore", state)

    def close(self) -> None:
        """Close all environments."""
        for lane in list(self._environments):
            self._discard(lane)

    def _open(self, lane: int) -> Any:
        if lane not in self._environments:
            try:
                self._environments[lane] = self._make()
            except Exception as error:
                raise failure(self._name, "constructor", error) from error
            self._refuse_async(self._environments[lane])
            self._abilities = abilities_of(self._environments[lane])
        return self._environments[lane]

    def _call(self, lane: int, call: str, argument: Any) -> Arrival:
        try:
            return getattr(self._open(lane), call)(argument)  # type: ignore[no-any-return]
        except ContractError:
            raise
        except Exception as error:
            self._discard(lane)  # what state it is in nobody knows
            return _caused(self._name, call, error)

    def _ability(self, lane: int, name: str, *arguments: Any) -> Any:
        refuse_missing(self._name, name, self._abilities)
        try:
            return getattr(self._environments[lane], name)(*arguments)
        except Exception as error:
            raise failure(self._name, name, error) from error

    def _discard(self, lane: int) -> None:
        if lane in self._environments:
            _close_quietly(self._environments.pop(lane))

    def _refuse_async(self, environment: Any) -> None:
        if inspect.iscoroutinefunction(environment.step):
            raise ContractError(
                where=f"environment {self._name}",
                what="its `step` is async, and the vector runner steps all lanes in one thread.",
                remedy="Set `rollout.runner: episodes`.",
            )


class VectorLanes:
    """The copies inside one Gymnasium vector environment, stepped in one call.

    Observations are the rows as flat float32 vectors. Info: `score`, the sum of rewards, and whatever numbers and
    flags the environment reports (`success`). Copies without an episode are stepped too; nobody looks at them.
    If the call raises, no lane can go on: all of them fail, and the environment is made anew.
    """

    def __init__(self, name: str, agent: str, make: Callable[[], VectorEnv[Any, Any, Any]]) -> None:
        """Raises: ContractError, if copies reset themselves: an episode's seed would then not be its task's."""
        self._name, self._agent, self._make = name, agent, make
        self._environment = make()
        self._count = self._environment.num_envs
        self._over = np.ones(self._count, bool)  # copies that must be reset before they are stepped
        self._score = np.zeros(self._count)
        if self._environment.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
            raise ContractError(
                where=f"environment {name}, vector_environment",
                what=f"its autoreset mode is {self._environment.metadata.get('autoreset_mode')}.",
                remedy="Make it with autoreset_mode=AutoresetMode.DISABLED; the runner resets each copy with its task.",
            )

    def agents(self, lane: int) -> tuple[str, ...]:
        """The one agent."""
        return (self._agent,)

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Arrival]:
        """Reset these copies with their tasks' seeds."""
        seeds = {lane: task.seed for lane, task in tasks.items()}
        try:
            seen, info = self._reset(seeds)
        except Exception as error:
            return self._broken("reset", tasks, error)
        return {lane: StepResult(observations=self._observe(seen, lane), info=self._info(info, lane)) for lane in tasks}

    def step(self, moves: Mapping[int, Mapping[str, Action]]) -> dict[int, Arrival]:
        """Step all copies; those without an episode take their first action."""
        taken = np.zeros(self._count, np.int64)
        for lane, actions in moves.items():
            taken[lane] = int(actions[self._agent].value)
        try:
            if self._over.any():
                self._reset(dict.fromkeys(np.flatnonzero(self._over).tolist(), 0))
            first = int(getattr(self._environment.single_action_space, "start", 0))
            seen, reward, terminated, truncated, info = self._environment.step(taken + first)
        except Exception as error:
            return self._broken("step", moves, error)
        self._over = terminated | truncated
        self._score += reward
        return {
            lane: StepResult(
                observations={} if self._over[lane] else self._observe(seen, lane),
                rewards={self._agent: float(reward[lane])},
                terminated=frozenset({self._agent} if terminated[lane] else ()),
                truncated=frozenset({self._agent} if truncated[lane] else ()),
                last=self._observe(seen, lane) if truncated[lane] else {},
                info=self._info(info, lane),
            )
            for lane in moves
        }

    def expert(self, lane: int, agent: str) -> Action:
        """There is none. Raises: EpisodeFailure."""
        raise no_expert(self._name)

    def snapshot(self, lane: int) -> Any:
        """The copies are one environment. Raises: EpisodeFailure."""
        raise no_snapshot(self._name)

    def restore(self, lane: int, state: Any) -> None:
        """The copies are one environment. Raises: EpisodeFailure."""
        raise no_snapshot(self._name)

    def close(self) -> None:
        """Close all copies."""
        self._environment.close()

    def _reset(self, seeds: Mapping[int, int]) -> tuple[Any, dict[str, Any]]:
        mask = np.zeros(self._count, bool)
        mask[list(seeds)] = True
        self._score[mask], self._over[mask] = 0.0, False
        chosen = [seeds.get(lane) for lane in range(self._count)]
        return self._environment.reset(seed=chosen, options={"reset_mask": mask})  # type: ignore[arg-type]

    def _observe(self, seen: Any, lane: int) -> dict[str, Observation]:
        return {self._agent: Observation(vector=np.array(seen[lane], np.float32).reshape(-1))}

    def _info(self, info: Mapping[str, Any], lane: int) -> dict[str, Any]:
        given = {
            key: info[key][lane].item()
            for key in info
            if f"_{key}" in info and info[f"_{key}"][lane] and _plain(info[key])
        }
        return {**given, "score": float(self._score[lane])}

    def _broken(self, call: str, lanes: Mapping[int, Any], error: Exception) -> dict[int, Arrival]:
        _close_quietly(self._environment)
        self._environment = self._make()
        self._over[:] = True
        return {lane: _caused(self._name, call, error) for lane in lanes}


def open_lanes(name: str, make: Callable[[], Any], count: int) -> PlainLanes | VectorLanes:
    """Lanes for `count` episodes: a vector environment where the environment offers one, else one object each.

    An environment of one agent offers it by the ability `vector_environment`.
    """
    try:
        environment = make()
    except Exception:
        return PlainLanes(name, make)  # which reports it, episode by episode
    if has(environment, "vector_environment") and len(environment.agents) == 1:
        return VectorLanes(name, environment.agents[0], lambda: environment.vector_environment(count))
    environment.close()
    return PlainLanes(name, make)


def _close_quietly(environment: Any) -> None:
    try:
        environment.close()
    except Exception:
        pass  # its episode is over and recorded


def _plain(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 1


def _caused(name: str, call: str, error: Exception) -> EpisodeFailure:
    found = failure(name, call, error)
    if found is not error:
        found.__cause__ = error
    return found
