"""Any Gymnasium environment with Discrete or bounded Box actions. Agents see vectors and texts.

Texts for the toy-text environments are in `text.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.gymnasium.text import WORDS, deterministic, shortest
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.results import single
from palaestra.errors import ContractError, InvalidData, MissingExtra, RecipeError, UnknownName, nearest
from palaestra.registry import PositiveInt, check_options, register

AGENT = "player"
SPLITS = ("train", "eval", "test")
SEEDS = 1 << 29  # seeds of each kind of split; Gymnasium environments take seeds below 2³¹


@register("environment", "gymnasium", source="arXiv 2407.17032")
class GymnasiumEnvironment:
    """A Gymnasium environment whose actions are Discrete, or a Box with bounds.

    Args:
        id: as for `gymnasium.make`: "CartPole-v1", "FrozenLake-v1", "package:Name-v0".
        options: keyword arguments of `gymnasium.make`, such as `is_slippery: false`.
        max_turns: turns until the episode is cut off. None: the environment's own limit.
        goal: True: an episode is a success if it terminates with a positive last reward. False: there is no success,
            only a score. None: FrozenLake, Taxi and CliffWalking have a success of their own, others none.

    Actions: an index, its digits as text, or the name of the action if it has one. For a Box: its numbers, as a vector
    or as text such as "0.5 -1", each clipped to its bounds. Any other value is marked invalid: the environment does not
    move, the observation is repeated, and the turn counts.
    Observation: `text`, in words for the toy-text environments, else the vector with two decimals; `vector`, one-hot
    for discrete spaces; `legal`, the names of all actions (none for a Box); `state_key`, for discrete spaces only.
    Ends: as in Gymnasium. An episode that is both terminated and truncated counts as terminated.
    Info: `score`, the sum of rewards; `success` at the end if there is a goal.
    Expert: a shortest way to the goal, if there is a goal and the environment has a deterministic table of transitions
    (FrozenLake with `is_slippery: false`, Taxi, CliffWalking).
    Raises: UnknownName; RecipeError, for other spaces and for a Box of actions without bounds; MissingExtra, if a
        package is not installed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "expert", "snapshot", "vector", "box")

    def __init__(
        self,
        *,
        id: str = "CartPole-v1",
        options: dict[str, Any] | None = None,
        max_turns: PositiveInt | None = None,
        goal: bool | None = None,
    ) -> None:
        note_version("gymnasium")
        self._where = f"environment gymnasium, id: {id}"
        self._params = {"id": id, "options": options or {}}
        self._environment = _make(id, options or {}, max_turns)
        inner = self._environment.unwrapped
        words = WORDS.get(type(inner).__name__)
        self.vector_size: int = int(spaces.flatdim(self._environment.observation_space))
        space = self._environment.action_space
        self.action_count: int | None = None
        self._names: tuple[str, ...] | None = None
        if isinstance(space, spaces.Discrete):
            self.abilities = without(self.abilities, "box")
            self.action_count = int(space.n)
            self._names = words.actions if words else tuple(str(index) for index in range(self.action_count))
        elif isinstance(space, spaces.Box):
            self.action_box = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
        self._rules = f"You act in {id}. Every message tells its state." if words is None else words.rules
        self._describe = words.describe if words else None
        self._succeeded = words.succeeded if words else None
        if goal is not None:
            self._succeeded = (lambda reward: reward > 0) if goal else None
        spec = self._environment.spec
        self._limit = max_turns or (spec.max_episode_steps if spec else None)
        self._last: Any = None
        self._turn, self._score = 0, 0.0
        table = getattr(inner, "P", None)
        if self._succeeded is None or not isinstance(table, dict) or not deterministic(table):
            self.abilities = without(self.abilities, "expert")

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        if self._names is None:
            numbers = int(np.prod(self._environment.action_space.shape or (1,)))
            return write_manual(
                f"{self._rules} An action is {numbers} numbers with spaces between them.",
                ending="Reach as much reward as you can.",
            )
        return write_manual(
            self._rules,
            dict.fromkeys(self._names, ""),
            example=self._names[0],
            ending="Reach as much reward as you can.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. The splits "train", "eval" and "test" and the others together share no seed."""
        kind = SPLITS.index(split) if split in SPLITS else len(SPLITS)
        seeds = [derive(seed, "gymnasium", split, number) % SEEDS * 4 + kind for number in range(n)]
        return [Task(env="gymnasium", params=self._params, seed=start, split=split) for start in seeds]

    def reset(self, task: Task) -> StepResult:
        if task.params and dict(task.params) != self._params:
            raise InvalidData(
                where=self._where,
                what=f"the task was made for {dict(task.params)}, and this environment is {self._params}.",
                remedy="Play tasks with the environment that gave them.",
            )
        self._last, _ = self._environment.reset(seed=task.seed)
        self._turn, self._score = 0, 0.0
        return single(AGENT, self._observe(), info={"score": 0.0})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        action = self._read(actions[AGENT].value)
        self._turn += 1
        reward, terminated, truncated = 0.0, False, False
        if action is not None:
            outcome = self._environment.step(action)
            self._last, reward = outcome[0], float(outcome[1])
            terminated, truncated = bool(outcome[2]), bool(outcome[3] and not outcome[2])
        if not terminated and self._limit is not None and self._turn >= self._limit:
            truncated = True  # Gymnasium does not count the turns of unreadable actions
        self._score += reward
        info: dict[str, Any] = {"score": self._score}
        if self._succeeded is not None and (terminated or truncated):
            info["success"] = terminated and self._succeeded(reward)
        return single(
            AGENT,
            None if terminated else self._observe(),
            reward=reward,
            over=terminated,
            cut=truncated,
            readable=action is not None,
            info=info,
        )

    def close(self) -> None:
        self._environment.close()

    # ---- abilities ----------------------------------------------------------------------------------------
    def snapshot(self) -> Any:
        return copy.deepcopy((self._environment, self._last, self._turn, self._score))

    def restore(self, state: Any) -> None:
        self._environment, self._last, self._turn, self._score = copy.deepcopy(state)

    def expert(self, agent: str) -> Action:
        """The next action of a shortest way to the goal. Raises: ContractError, if there is no way."""
        assert self._succeeded is not None and self._names is not None  # otherwise `abilities` has no `expert`
        index = shortest(self._environment.unwrapped.P, int(self._last), self._succeeded)  # type: ignore[attr-defined]
        if index is None:
            raise ContractError(
                where=self._where,
                what="the expert found no way to the goal.",
                remedy="This map cannot be solved from here. Give another one in `options`.",
            )
        return Action(text=self._names[index], value=index)

    # ---- observations and actions -------------------------------------------------------------------------
    def _observe(self) -> Observation:
        space = self._environment.observation_space
        vector = np.asarray(spaces.flatten(space, self._last), np.float32)
        if self._describe is not None:
            text = self._describe(self._environment.unwrapped, self._last)
        else:
            text = " ".join(f"{number:.2f}" for number in vector)
        key = str(self._last) if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) else None
        return Observation(text=text, vector=vector, legal=self._names, state_key=key)

    def _read(self, value: Any) -> Any:
        """The element of the action space that a value means, or None if it means none."""
        space = self._environment.action_space
        if isinstance(space, spaces.Box):
            return _point(value, space)
        assert isinstance(space, spaces.Discrete) and self._names is not None
        if isinstance(value, str):
            value = read_leniently(value, self._named)
        elif isinstance(value, np.ndarray):
            value = value.item() if value.size == 1 else None
        whole = isinstance(value, (int, np.integer)) and 0 <= value < space.n
        return space.start + int(value) if whole else None  # type: ignore[arg-type]

    def _named(self, text: str) -> int | None:
        """The index of the action with this name, or with these digits; None, if the text is neither."""
        assert self._names is not None
        word = " ".join(text.lower().split())
        return self._names.index(word) if word in self._names else int(word) if word.isdecimal() else None


def _point(value: Any, space: spaces.Box) -> np.ndarray | None:
    """A vector, or its numbers as text, clipped to a Box. None if it has other than finite numbers of its shape."""
    try:
        given = value.replace(",", " ").split() if isinstance(value, str) else value
        numbers = np.asarray(given, np.float64).reshape(space.shape)
    except (TypeError, ValueError):
        return None
    return np.clip(numbers, space.low, space.high).astype(space.dtype) if np.isfinite(numbers).all() else None


def vector_environment(environment_options: Mapping[str, Any], count: int, seed: int) -> SyncVectorEnv:
    """`count` copies of a `gymnasium` environment that step together, for the vectorized runner.

    Observations are float32 (count, vector_size), flattened like `Observation.vector`. The autoreset mode is SAME_STEP:
    the step that ends an episode returns the first observation of the next one. The last observation of the ended
    episode is in `info["final_obs"]` where `info["_final_obs"]` is true.

    Args:
        environment_options: `id`, `options` and `max_turns`, as in a recipe.
        count: number of copies.
        seed: copy i is seeded with `derive(seed, i)` here, so call `reset()` without a seed.
    """
    where = "vector_environment(…)"
    checked = check_options(GymnasiumEnvironment.part.options, environment_options, where=where, owner="`gymnasium`")  # type: ignore[attr-defined]

    def make() -> gymnasium.Env[Any, Any]:
        flat = gymnasium.wrappers.FlattenObservation(
            _make(checked["id"], checked["options"] or {}, checked["max_turns"])
        )
        return gymnasium.wrappers.DtypeObservation(flat, np.float32)

    environments = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    environments.reset(seed=[derive(seed, index) % (4 * SEEDS) for index in range(count)])
    return environments


def _make(id: str, options: Mapping[str, Any], max_turns: int | None) -> gymnasium.Env[Any, Any]:
    where = f"environment gymnasium, id: {id}"
    limit = {} if max_turns is None else {"max_episode_steps": max_turns}
    try:
        environment = gymnasium.make(id, disable_env_checker=True, **limit, **options)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv):
        raise UnknownName(
            where=where,
            what=f"Gymnasium has no environment `{id}`.",
            options=nearest(id, gymnasium.registry),
            remedy="If another package has it, write `package:Name-v0`.",
        ) from None
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        remedy = "Install the package that this message names."
        raise MissingExtra(
            where=where, what=f"it needs a package that is not installed: {error}.", remedy=remedy
        ) from error
    except TypeError as error:
        remedy = "Correct `options`. They are keyword arguments of gymnasium.make."
        raise RecipeError(where=where, what=f"gymnasium.make refused the options: {error}.", remedy=remedy) from error
    _check_spaces(environment, where)
    return environment


def _check_spaces(environment: gymnasium.Env[Any, Any], where: str) -> None:
    acts = environment.action_space
    if not isinstance(acts, spaces.Discrete) and not (isinstance(acts, spaces.Box) and acts.is_bounded()):
        raise RecipeError(
            where=where,
            what=f"its action space is {acts}, neither Discrete nor a Box with bounds.",
            remedy="Wrap the environment so that its actions are Discrete, or a Box with finite bounds.",
        )
    try:
        flat = environment.observation_space.is_np_flattenable and spaces.flatdim(environment.observation_space) > 0
    except (NotImplementedError, ValueError):  # spaces of other packages may not support it
        flat = False
    if not flat:
        raise RecipeError(
            where=where,
            what=f"its observation space is {environment.observation_space}, which has no vector of fixed size.",
            remedy="Wrap the environment so that its observations are Box, Discrete, or a Tuple or Dict of these.",
        )
