"""`as_parallel` and `as_aec` make a PettingZoo environment of any environment.

In the first all agents act at once, in the second one after another. Spaces and tasks are in `spaces.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.data import Observation, StepResult
from palaestra.envs.adapters.exports.spaces import Acts, Exported, Seen
from palaestra.errors import ContractError, missing_extra

SEEDS = 1 << 31


class SeenText(str):
    """A text with the dtype of a text space. PettingZoo's `api_test` asks every observation for its dtype."""

    __slots__ = ()
    dtype = np.dtype(str)


class Table:
    """What both interfaces share: spaces, the agents that are to act, and each agent's last observation."""

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        seen = exported.seen
        if exported.by_index:
            mask = spaces.Box(0, 1, (int(exported.acts.n),), np.int8)  # type: ignore[attr-defined]
            seen = spaces.Dict({"observation": seen, "action_mask": mask})
        self.seen_by = dict.fromkeys(exported.agents, seen)
        self.acts_of = dict.fromkeys(exported.agents, exported.acts)
        self.draw = np.random.default_rng(0)
        self.asked: dict[str, Observation] = {}
        self.last: dict[str, Observation] = {}

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> StepResult:
        if seed is not None:
            self.draw = np.random.default_rng(seed)
        task = self.exported.task(int(self.draw.integers(SEEDS)) if seed is None else seed, options)
        self.last = {}
        return self.take(self.exported.reset(task))

    def step(self, values: Mapping[str, Any]) -> StepResult:
        return self.take(self.exported.step(values))

    def take(self, result: StepResult) -> StepResult:
        self.asked = dict(result.observations)
        self.last |= {**result.observations, **result.last}
        return result

    def look(self, agent: str) -> Any:
        seen = self.last.get(agent)
        element = self.exported.look(seen)
        if isinstance(element, str):
            element = SeenText(element)
        if not self.exported.by_index:
            return element
        return {"observation": element, "action_mask": self.exported.mask(seen, asked=agent in self.asked)}

    def told(self, agent: str, result: StepResult) -> dict[str, Any]:
        own = {key: given[agent] for key, given in result.info.items() if _of_agents(given) and agent in given}
        shared = {key: given for key, given in result.info.items() if not _of_agents(given)}
        return shared | own | self.exported.told(self.asked.get(agent)) | {"acts": agent in self.asked}

    def ends(self, result: StepResult, alive: list[str]) -> tuple[dict[str, bool], dict[str, bool]]:
        """For each living agent, whether it is terminated and whether it is truncated.

        When no agent is to act, the agents that are not truncated are terminated.
        """
        over = not result.observations
        cut = {agent: agent in result.truncated for agent in alive}
        return {agent: agent in result.terminated or (over and not cut[agent]) for agent in alive}, cut


def _of_agents(value: Any) -> bool:
    return isinstance(value, Mapping)


def _package() -> Any:
    try:
        import pettingzoo
    except ModuleNotFoundError:
        raise missing_extra("pettingzoo", extra="envs", needed_for="export to PettingZoo") from None
    return pettingzoo


# ---- the two interfaces: classes inside functions, since they inherit from an optional package ----------------
@functools.cache
def _parallel() -> Any:
    class Together(_package().ParallelEnv):  # type: ignore[misc]
        """The environment that `as_parallel` makes."""

        metadata = {"name": "palaestra", "render_modes": []}
        render_mode = None

        def __init__(self, exported: Exported) -> None:
            self._table = Table(exported)
            self.possible_agents = list(exported.agents)
            self.agents: list[str] = []

        def observation_space(self, agent: str) -> Any:
            return self._table.seen_by[agent]

        def action_space(self, agent: str) -> Any:
            return self._table.acts_of[agent]

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            result = self._table.reset(seed, options)
            self.agents = list(self.possible_agents)
            return self._seen(self.agents), {agent: self._table.told(agent, result) for agent in self.agents}

        def step(self, actions: Mapping[str, Any]) -> Any:
            acted = list(self.agents)
            result = self._table.step({agent: actions[agent] for agent in self._table.asked})
            over, cut = self._table.ends(result, acted)
            self.agents = [agent for agent in acted if not over[agent] and not cut[agent]]
            rewards = {agent: float(result.rewards.get(agent, 0.0)) for agent in acted}
            return self._seen(acted), rewards, over, cut, {agent: self._table.told(agent, result) for agent in acted}

        def close(self) -> None:
            self._table.exported.close()

        def _seen(self, agents: list[str]) -> dict[str, Any]:
            return {agent: self._table.look(agent) for agent in agents}

    return Together


@functools.cache
def _aec() -> Any:
    class InTurn(_package().AECEnv):  # type: ignore[misc]
        """The environment that `as_aec` makes."""

        metadata = {"name": "palaestra", "render_modes": [], "is_parallelizable": False}
        render_mode = None

        def __init__(self, exported: Exported) -> None:
            super().__init__()
            self._table = Table(exported)
            self.possible_agents = list(exported.agents)
            self.agents = []

        def observation_space(self, agent: str) -> Any:
            return self._table.seen_by[agent]

        def action_space(self, agent: str) -> Any:
            return self._table.acts_of[agent]

        def observe(self, agent: str) -> Any:
            return self._table.look(agent)

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            result = self._table.reset(seed, options)
            self.agents = list(self.possible_agents)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos = {agent: self._table.told(agent, result) for agent in self.agents}
            self._given: dict[str, Any] = {}
            self.agent_selection = next(iter(self._table.asked))

        def step(self, action: Any) -> None:
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                self._was_dead_step(action)
                return
            if not self._table.asked:
                raise ContractError(
                    where="export to PettingZoo", what="`step` was called before `reset`.", remedy="Call `reset` first."
                )
            self._clear_rewards()
            self._cumulative_rewards[agent] = 0.0
            self._given[agent] = action
            waiting = [name for name in self._table.asked if name not in self._given]
            if waiting:  # these agents act at the same time, so the environment steps when the last has acted
                self.agent_selection = waiting[0]
                return
            result = self._table.step(self._given)
            self._given = {}
            self.rewards = {name: float(result.rewards.get(name, 0.0)) for name in self.agents}
            self.terminations, self.truncations = self._table.ends(result, list(self.agents))
            self.infos = {name: self._table.told(name, result) for name in self.agents}
            self.agent_selection = next(iter(self._table.asked), self.agents[0])
            self._accumulate_rewards()
            self._deads_step_first()

        def close(self) -> None:
            self._table.exported.close()

    return InTurn


# ---- making -------------------------------------------------------------------------------------------------
def as_parallel(
    environment: Any,
    *,
    options: Mapping[str, Any] | None = None,
    see: Seen = "auto",
    act: Acts = "auto",
    split: str = "train",
    longest: int = 4000,
) -> Any:
    """An environment as a PettingZoo ParallelEnv, in which all living agents give an action in each step.

    The environment ignores the actions of agents that are not to act; their `info["acts"]` is False. If actions are
    indices, an observation is a dict with `observation` and `action_mask`, as in PettingZoo's games.

    Args: as of palaestra.envs.adapters.exports.gymnasium.as_gymnasium.
    """
    return _parallel()(Exported(environment, options, see, act, split, longest))


def as_aec(
    environment: Any,
    *,
    options: Mapping[str, Any] | None = None,
    see: Seen = "auto",
    act: Acts = "auto",
    split: str = "train",
    longest: int = 4000,
) -> Any:
    """An environment as a PettingZoo AECEnv, in which one agent acts after another.

    Only agents that are to act get a turn. If several of them act at the same time, the environment steps after the
    last of them. Observations are as in `as_parallel`.

    Args: as of `as_parallel`.
    """
    return _aec()(Exported(environment, options, see, act, split, longest))
