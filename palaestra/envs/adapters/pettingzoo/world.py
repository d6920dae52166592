"""PettingZoo (arXiv 2009.14471): games and tasks of several agents that act all at once or one after the other.

This file plays both interfaces of PettingZoo. `spaces` turns what an agent sees and answers into observations and
actions.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import without
from palaestra.envs.adapters.infos import kept, succeeded
from palaestra.envs.adapters.pettingzoo.spaces import Seat
from palaestra.envs.adapters.rewards import Weights
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import several
from palaestra.envs.kit.state import unstarted
from palaestra.errors import ContractError, MissingExtra, RecipeError, UnknownName, missing_extra, nearest
from palaestra.registry import Positive, PositiveInt, part, register

SEEDS = 1 << 31  # PettingZoo environments take seeds below this
Seen = tuple[Observation, list[Any] | None]  # what an agent sees, and its legal actions


@register(
    "environment",
    "pettingzoo",
    ignores_if={"goal=none": ("goal_return",), "goal=first": ("goal_return",)},
    source="arXiv 2009.14471",
    extra="envs",
    modules=("pettingzoo",),
)
class PettingZoo:
    """Play a game or a task of several agents from PettingZoo, MPE2 or a package of the same interface.

    Args:
        env: a name of PettingZoo's registry, such as `classic/tictactoe-v3`; a module, such as
            `mpe2.simple_spread_v3`; or a function or class that makes the environment, as `module:function` or
            `path/to/file.py:Class`.
        options: keyword arguments of the environment, such as `N: 2, max_cycles: 25`.
        api: "parallel": all agents that are still in the game act at once. "aec": agents act one after the other.
            "auto": parallel, if the module has it.
        names: words for the actions, if all agents have the same discrete ones. The text shows them, and answers may
            use them.
        max_turns: steps until the episode is cut off; None: the environment's own limit.
        goal: what success means. "none": there is no success, only a score. "return": the average return of the agents
            is at least `goal_return`. "first": the first agent has a higher return than every other.
        goal_return: the average return from which an episode is a success, with `goal: return`.
        illegal: what happens at an answer that cannot be read or that the action mask forbids. "replace": the first
            legal action is played in its place (in a Box the middle, in other spaces without a list the smallest).
            "lose": the agent loses `penalty`, and the game ends for all.
        penalty: what an illegal answer costs with `illegal: lose`. Usual: 1.
        expert: a function of yours, `path/to/file.py:function`. It is called with the environment and an agent's name,
            and returns an action. None: there is no expert.
        objectives: weights of an environment whose rewards are vectors, such as those of MOMAland. An agent's reward is
            the weighted sum, and `info` has all numbers as `objectives`.

    A discrete action is an index, its digits, or its name. A Box action is an array in `Action.value`, or a text with
    its numbers; numbers outside of the bounds are clipped. An action of a Text space is the text, MultiDiscrete and
    MultiBinary are their numbers, and a Dict or a Tuple is its parts as JSON.
    Observation: `text`, the agent's name and the numbers that it sees, or the words of Text spaces; `vector`, the same
    flattened, with zeros at the end so that all agents have one size, and none with a Text; `image` in place of both,
    if it sees an image; `legal`, the actions that the mask allows; `state_key`, unless observations are real numbers.
    `global_state()` gives the environment's `state()`, if it has one.
    Ends: each agent ends on its own. An agent that is both terminated and truncated counts as terminated.
    Info: `invalid` and `illegal`, for agents whose last answer could not be read or was not legal, and what the
    environment tells of each agent. At the end `returns` of each agent; `score`, the average return, or with `goal:
    first` that of the first agent; `success`, if there is a goal. Without one, it is whether each agent that was told
    `is_success` or `success` by the environment had it in the end.
    Raises: UnknownName; RecipeError, for spaces, options or rewards that do not fit; MissingExtra.
    """

    abilities: tuple[str, ...] = ("tasks", "instruction", "expert", "snapshot", "global_state", "vector")

    # Columns of a table of its episodes. An object lists fewer, if all observations are real numbers or images.
    provides: frozenset[str] = frozenset({"state_key", "outcome", "illegal"})

    def __init__(
        self,
        *,
        env: str = "mpe2.simple_spread_v3",
        options: dict[str, Any] | None = None,
        api: Literal["auto", "parallel", "aec"] = "auto",
        names: tuple[str, ...] | None = None,
        max_turns: PositiveInt | None = None,
        goal: Literal["none", "return", "first"] = "none",
        goal_return: float = 0.0,
        illegal: Literal["replace", "lose"] = "replace",
        penalty: Positive = 1.0,
        expert: str | None = None,
        objectives: tuple[float, ...] | None = None,
    ) -> None:
        note_version("pettingzoo")
        self._where = f"environment pettingzoo, env: {env}"
        self._params = {"env": env, "options": options or {}, "api": api}
        self._inner, self._parallel = _make(env, options or {}, api, self._where)
        self._max_turns, self._goal, self._goal_return = max_turns, goal, goal_return
        self._illegal, self._penalty = illegal, penalty
        self.agents: tuple[str, ...] = tuple(str(agent) for agent in self._inner.possible_agents)
        self._seats = {
            agent: Seat(agent, self._inner.observation_space(agent), self._inner.action_space(agent), names or ())
            for agent in self.agents
        }
        if not any(seat.has_keys for seat in self._seats.values()):
            self.provides = self.provides - {"state_key"}
        counts = [seat.count for seat in self._seats.values()]
        sizes = [seat.size for seat in self._seats.values()]
        self.action_count: int | None = None if None in counts else max(counts)  # type: ignore[type-var]
        self.vector_size: int | None = None if None in sizes else max(sizes)  # type: ignore[type-var]
        self._weights = Weights(objectives, _reward_spaces(self._inner, self.agents), where=self._where)
        self._successes: dict[str, bool] = {}  # agent → whether the environment told its success
        self._expert = part("environment", expert, where=f"{self._where}, expert").target if expert else None
        if self._expert is None:
            self.abilities = without(self.abilities, "expert")
        self._asked: dict[str, list[Any] | None] = {}  # agent that acts next → its legal actions
        self._done: set[str] = set()
        self._returns: dict[str, float] = {}
        self._task: Task | None = None
        self._history: list[dict[str, Action]] = []
        if self.vector_size is None and self.action_count is None:
            self.abilities = without(self.abilities, "vector")
        if not _has_state(self._inner):
            self.abilities = without(self.abilities, "global_state")

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        seat = self._seats.get(agent)
        names = seat.names if seat is not None else None
        shown = "" if seat is not None and seat.size is None else " as numbers"
        how = "" if seat is None or names else f" An action is {seat.how}."
        return write_manual(
            f"You are the agent {agent} of {self._params['env']}. Every message shows what you see{shown}.{how}",
            dict.fromkeys(names, "") if names else None,
            ending="Answer with a legal action and nothing else. Reach as much reward as you can.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, which differ in their seeds; training and evaluation share no seed."""
        return seeded_tasks("pettingzoo", self._params, split, n, seed)

    def reset(self, task: Task) -> StepResult:
        if task.params.get("env", self._params["env"]) != self._params["env"]:
            raise ContractError(where=self._where, what=f"the task is of `{task.params['env']}`.")
        begun = self._inner.reset(seed=task.seed % SEEDS)
        self._done, self._task, self._history = set(), task, []
        self._returns, self._successes = dict.fromkeys(self.agents, 0.0), {}
        seen = self._look(*begun) if self._parallel else self._look_at_next()
        return several(self._ask(seen), info=self._told(begun[1] if self._parallel else self._inner.infos))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        if not self._asked:
            raise unstarted(self)
        invalid, illegal, done = {}, {}, {}
        for agent, legal in self._asked.items():
            found = self._seats[agent].read(actions[agent].value, legal)
            if found is None:
                invalid[agent] = True
            elif not found.legal:
                illegal[agent] = 1.0
            done[agent] = found.action if found is not None and found.legal else self._seats[agent].stand_in(legal)
        info = {key: value for key, value in (("invalid", invalid), ("illegal", illegal)) if value}
        self._history.append(dict(actions))
        if self._illegal == "lose" and (invalid or illegal):
            return self._lost({**invalid, **illegal}, info)
        return self._together(done, info) if self._parallel else self._in_turn(done, info)

    def close(self) -> None:
        self._asked = {}
        self._inner.close()

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The action of the function that the option `expert` names."""
        assert self._expert is not None  # `abilities` has "expert" only with that option
        value = self._expert(self._inner, agent)
        return value if isinstance(value, Action) else Action(text=_text(value), value=value)

    def global_state(self) -> np.ndarray:
        """The environment's `state()`, for a centralized critic: float32 (n,)."""
        return np.asarray(self._inner.state(), np.float32).ravel()

    def snapshot(self) -> Any:
        """The task and all actions so far. PettingZoo environments cannot be copied, so `restore` plays them again."""
        return self._task, tuple(self._history)

    def restore(self, state: Any) -> None:
        task, history = state
        self.reset(task)
        for actions in history:
            self.step(actions)

    # ---- all at once --------------------------------------------------------------------------------------
    def _together(self, done: dict[str, Any], info: dict[str, Any]) -> StepResult:
        seen, rewards, terminations, truncations, infos = self._inner.step(done)
        return self._result(rewards, terminations, truncations, lambda: self._look(seen, infos), info, infos)

    def _look(self, seen: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[str, Seen]:
        alive = [agent for agent in self.agents if agent in seen and agent not in self._done]
        return {agent: self._see(agent, seen[agent], infos.get(agent)) for agent in alive}

    # ---- one after the other ------------------------------------------------------------------------------
    def _in_turn(self, done: dict[str, Any], info: dict[str, Any]) -> StepResult:
        env = self._inner
        (action,) = done.values()
        env.step(action)
        ends = dict(env.terminations), dict(env.truncations)
        last = {
            agent: self._see(agent, env.observe(agent), env.infos.get(agent))
            for agent in env.agents
            if ends[1].get(agent) and not ends[0].get(agent)
        }
        rewards = {agent: gain for agent, gain in env.rewards.items() if agent not in self._done}

        def following() -> dict[str, Seen]:
            return {**last, **self._look_at_next()}

        return self._result(rewards, *ends, following, info, dict(env.infos))

    def _look_at_next(self) -> dict[str, Seen]:
        """What the agent that acts next sees. Agents that have ended leave the game first."""
        env = self._inner
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if not env.agents:
            return {}
        agent = env.agent_selection
        return {agent: self._see(agent, env.observe(agent), env.infos.get(agent))}

    # ---- results ------------------------------------------------------------------------------------------
    def _result(
        self, rewards: Any, terminations: Any, truncations: Any, following: Any, info: Any, infos: Any
    ) -> StepResult:
        weighed = {agent: self._weights.weigh(gain) for agent, gain in rewards.items() if agent in self._returns}
        gains = {agent: gain for agent, (gain, _) in weighed.items()}
        for agent, gain in gains.items():
            self._returns[agent] += gain
        objectives = {agent: numbers for agent, (_, numbers) in weighed.items() if numbers}
        info = self._told(infos) | ({"objectives": objectives} if objectives else {}) | info
        ended = {agent for agent, over in terminations.items() if over} - self._done
        cut = {agent for agent, over in truncations.items() if over} - self._done - ended
        seen = following()  # after the rewards were read: it removes agents that have ended, with their rewards
        alive = set(self.agents) - self._done - ended - cut if seen.keys() - ended - cut else set()
        if alive and self._max_turns is not None and len(self._history) >= self._max_turns:
            seen = seen if self._parallel else {**seen, **{a: self._see(a, self._inner.observe(a), {}) for a in alive}}
            cut |= alive
            alive = set()
        self._done |= ended | cut
        shown = self._ask({agent: both for agent, both in seen.items() if agent in alive})
        if not shown:
            info = info | self._outcome()
        last = {agent: seen[agent][0] for agent in sorted(cut) if agent in seen}
        return several({**shown, **last}, rewards=gains, over=ended, cut=cut, info=info)

    def _lost(self, losers: Mapping[str, Any], info: dict[str, Any]) -> StepResult:
        """End the game for all. Each loser gets -`penalty`."""
        left = frozenset(self.agents) - self._done
        for agent in losers:
            self._returns[agent] -= self._penalty
        self._asked = {}
        return several(
            {}, rewards=dict.fromkeys(losers, -self._penalty), over=left, info=info | self._outcome(lost=True)
        )

    def _told(self, infos: Any) -> dict[str, dict[str, Any]]:
        """What the environment tells of its agents: name → agent → value."""
        told: dict[str, dict[str, Any]] = {}
        for agent in (agent for agent in self.agents if agent in infos):
            success = succeeded(infos[agent]) if isinstance(infos[agent], Mapping) else None
            if success is not None:
                self._successes[agent] = success
            for name, value in kept("pettingzoo", infos[agent]).items():
                told.setdefault(name, {})[agent] = value
        return told

    def _outcome(self, *, lost: bool = False) -> dict[str, Any]:
        own = self._returns[self.agents[0]]
        average = sum(self._returns.values()) / len(self._returns)
        found: dict[str, Any] = {"returns": dict(self._returns), "score": own if self._goal == "first" else average}
        if self._goal == "return":
            found["success"] = not lost and average >= self._goal_return
        elif self._goal == "none" and self._successes:
            found["success"] = not lost and all(self._successes.values())
        elif self._goal == "first":
            found["success"] = all(own > gain for agent, gain in self._returns.items() if agent != self.agents[0])
        return found

    def _ask(self, seen: Mapping[str, Seen]) -> dict[str, Observation]:
        self._asked = {agent: legal for agent, (_, legal) in seen.items()}
        return {agent: observation for agent, (observation, _) in seen.items()}

    def _see(self, agent: str, raw: Any, info: Any) -> Seen:
        lead = f"you are {agent}. " if len(self.agents) > 1 else ""
        return self._seats[agent].observe(raw, info, self.vector_size, lead=lead)


def _text(value: Any) -> str:
    return " ".join(f"{number:.2f}" for number in value.flat) if isinstance(value, np.ndarray) else str(value)


# ---- making -----------------------------------------------------------------------------------------------
def _make(env: str, options: Mapping[str, Any], api: str, where: str) -> tuple[Any, bool]:
    """The environment, and whether all of its agents act at once."""
    try:
        import pettingzoo
    except ModuleNotFoundError:
        raise missing_extra("pettingzoo", extra="envs", needed_for=where) from None
    kinds = {"auto": ("parallel", "aec"), "parallel": ("parallel",), "aec": ("aec",)}[api]
    made = _maker(env, kinds, where, {"parallel": pettingzoo.parallel_registry, "aec": pettingzoo.aec_registry})
    try:
        made = made(**options)
    except TypeError as error:
        remedy = "Correct `options`; they are the keyword arguments of the environment."
        raise RecipeError(where=where, what=f"it refused its options: {error}.", remedy=remedy) from error
    except ImportError as error:
        raise _absent(where, error) from error
    name, refuse = "parallel" if isinstance(made, pettingzoo.ParallelEnv) else "aec", Refusals(where)
    refuse.when(
        name == "aec" and not isinstance(made, pettingzoo.AECEnv),
        f"it made a {type(made).__name__}, which is no environment of PettingZoo.",
        "Name a function or class that makes an AECEnv or a ParallelEnv.",
    )
    refuse.when(
        api not in ("auto", name),
        f"`api` is {api}, and the environment has only `{name}`.",
        "Leave `api` out, or convert the environment with pettingzoo.utils.conversions.",
    )
    refuse.when(
        not getattr(made, "possible_agents", None),
        "it has no `possible_agents`.",
        "Set `possible_agents` in the environment: all agents must be known before an episode.",
    )
    return made, name == "parallel"


def _maker(env: str, kinds: Sequence[str], where: str, registries: Mapping[str, Mapping[str, Any]]) -> Any:
    """The function or class that makes the environment, of the first of these kinds that exists.

    Raises: UnknownName; MissingExtra, if the module needs a package that is not installed.
    """
    if ":" in env:
        return part("environment", env, where=where).target
    known = next((registries[kind][env].entry_point for kind in kinds if env in registries[kind]), env)
    place, _, attribute = known.partition(":")
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or place == error.name or place.startswith(f"{error.name}."):
            raise UnknownName(
                where=where,
                what=f"`{env}` is no name of PettingZoo's registry and no module.",
                options=nearest(env, {name for kind in kinds for name in registries[kind]}),
                remedy="Write a module such as `mpe2.simple_spread_v3`, or `path/to/file.py:Class`.",
            ) from None
        raise _absent(where, error) from error
    for name in (attribute or ("parallel_env" if kind == "parallel" else "env") for kind in kinds):
        if hasattr(module, name):
            return getattr(module, name)
    what = f"the module makes no environment of the kind {' or '.join(kinds)}."
    raise UnknownName(where=where, what=what, remedy="Set `api` to auto, or write `module:function`.")


def _absent(where: str, error: ImportError) -> MissingExtra:
    what = f"it needs a package that is not installed: {str(error).rstrip('.')}."
    return MissingExtra(where=where, what=what, remedy="Install the package that this names.")


def _reward_spaces(env: Any, agents: Sequence[str]) -> list[Any]:
    """The reward spaces that environments of several objectives declare."""
    declared = getattr(env, "reward_space", None)
    return [declared(agent) for agent in agents] if callable(declared) else []


def _has_state(env: Any) -> bool:
    """Whether `state()` gives finite numbers. Environments without it raise various errors."""
    env.reset(seed=0)
    try:
        return bool(np.isfinite(np.asarray(env.state(), np.float32)).all())
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        return False
