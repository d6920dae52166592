"""Any Gymnasium environment whose actions and observations agents can write and read. Agents see vectors and texts.

Texts for the toy-text environments are in `text.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.data.task import content_digest
from palaestra.envs.adapters.gymnasium.text import WORDS, deterministic, shortest
from palaestra.envs.adapters.infos import kept, succeeded
from palaestra.envs.adapters.rewards import Weights
from palaestra.envs.adapters.spaces import (
    MASK,
    Visible,
    how_to_write,
    in_space,
    in_words,
    is_exact,
    is_readable,
    legal_places,
    numbered,
    size_of,
)
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
    """A Gymnasium environment.

    Args:
        id: as for `gymnasium.make`: "CartPole-v1", "FrozenLake-v1", "package:Name-v0".
        options: keyword arguments of `gymnasium.make`, such as `is_slippery: false`.
        max_turns: turns until the episode is cut off. None: the environment's own limit.
        goal: True: an episode is a success if it terminates with a positive last reward. False: there is no success,
            only a score. None: FrozenLake, Taxi and CliffWalking have a success of their own. Others have the one that
            their `info` tells as `is_success` or `success`, if it does: that of the last step counts.
        objectives: weights of an environment whose reward is a vector, such as those of MO-Gymnasium. The reward is the
            weighted sum, and `info` has all numbers as `objectives`.
        illegal: what happens to an answer that the action mask forbids. "play": the environment gets it. "skip": the
            environment does not move, as for an answer that cannot be read. Both mark it in the column `illegal`.

    Actions: an index, its digits as text, or the name of the action if it has one. For a Box: its numbers, as a vector
    or as text such as "0.5 -1", each clipped to its bounds. For a Text: the text. For MultiDiscrete and MultiBinary:
    the numbers. For a Dict or a Tuple: its parts, as JSON. Any other value is marked invalid: the environment does not
    move, the observation is repeated, and the turn counts.
    Observation: `text`, in words for the toy-text environments, else the vector with two decimals. Text spaces keep
    their texts, and parts of a Dict their names. `vector`, one-hot for discrete spaces; none with a Text. `legal`, the
    names of all actions, or the indices that the action mask allows (`info["action_mask"]`, or `action_mask` beside
    `observation` in a Dict); none for actions without indices. `state_key`, unless observations are real numbers.
    Ends: as in Gymnasium. An episode that is both terminated and truncated counts as terminated.
    Info: `score`, the sum of rewards; `success`, if there is a goal; `illegal`; and the environment's own `info`.
    Expert: a shortest way to the goal, if there is a goal and the environment has a deterministic table of transitions
    (FrozenLake with `is_slippery: false`, Taxi, CliffWalking).
    Raises: UnknownName; RecipeError, for other spaces, for a Box of actions without bounds, and for a reward of several
        numbers without `objectives`; MissingExtra, if a package is not installed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "expert", "snapshot", "vector", "box")
    # Columns of a table of its episodes. An object lists fewer, if its observations are real numbers or no goal is set.
    provides: frozenset[str] = frozenset({"state_key", "outcome", "illegal"})

    def __init__(
        self,
        *,
        id: str = "CartPole-v1",
        options: dict[str, Any] | None = None,
        max_turns: PositiveInt | None = None,
        goal: bool | None = None,
        objectives: tuple[float, ...] | None = None,
        illegal: Literal["play", "skip"] = "play",
    ) -> None:
        note_version("gymnasium")
        self._where = f"environment gymnasium, id: {id}"
        self._params = {"id": id, "options": options or {}}
        self._environment = _make(id, options or {}, max_turns)
        inner = self._environment.unwrapped
        words = WORDS.get(type(inner).__name__)
        space = self._environment.action_space
        self._visible = Visible(self._environment.observation_space, space)
        self.vector_size: int | None = size_of(self._visible.space)
        self._actions = numbered(space)
        self.action_count: int | None = None if self._actions is None else len(self._actions)
        self._names: tuple[str, ...] | None = None
        if self._actions is not None:
            shown = range(len(self._actions)) if isinstance(space, spaces.Discrete) else self._actions
            self._names = words.actions if words else tuple(in_words(space, one) for one in shown)
        if isinstance(space, spaces.Box):
            self.action_box = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
        else:
            self.abilities = without(self.abilities, "box")
        if self.vector_size is None and self._actions is None:
            self.abilities = without(self.abilities, "vector")
        declared = getattr(inner, "reward_space", None)
        self._weights = Weights(objectives, [] if declared is None else [declared], where=self._where)
        self._skips = illegal == "skip"
        self._rules = f"You act in {id}. Every message tells its state." if words is None else words.rules
        self._describe = words.describe if words else None
        self._succeeded = words.succeeded if words else None
        self._tells_success = goal is None and self._succeeded is None  # in `info`
        if goal is not None:
            self._succeeded = (lambda reward: reward > 0) if goal else None
        self._exact = is_exact(self._visible.space)
        lacking = {"outcome"} if goal is False else set()
        self.provides = self.provides - (lacking if self._exact else lacking | {"state_key"})
        spec = self._environment.spec
        self._limit = max_turns or (spec.max_episode_steps if spec else None)
        self._last: Any = None
        self._info: dict[str, Any] = {}
        self._turn, self._score = 0, 0.0
        table = getattr(inner, "P", None)
        if self._succeeded is None or not isinstance(table, dict) or not deterministic(table):
            self.abilities = without(self.abilities, "expert")

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        if self._names is None:
            return write_manual(
                f"{self._rules} An action is {how_to_write(self._environment.action_space)}.",
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
        self._last, self._info = self._environment.reset(seed=task.seed)
        self._turn, self._score = 0, 0.0
        return single(AGENT, self._observe(), info=self._told() | {"score": 0.0})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        action = self._read(actions[AGENT].value)
        forbidden = action is not None and self._forbids(action)
        self._turn += 1
        reward, terminated, truncated = 0.0, False, False
        numbers: list[float] = []
        if action is not None and not (forbidden and self._skips):
            self._last, gain, over, cut, self._info = self._environment.step(action)
            reward, numbers = self._weights.weigh(gain)
            terminated, truncated = bool(over), bool(cut and not over)
        if not terminated and self._limit is not None and self._turn >= self._limit:
            truncated = True  # Gymnasium does not count the turns of unreadable actions
        self._score += reward
        info = self._told() | {"score": self._score} | ({"objectives": numbers} if numbers else {})
        if self._succeeded is not None and (terminated or truncated):
            info["success"] = terminated and self._succeeded(reward)
        return single(
            AGENT,
            None if terminated else self._observe(),
            reward=reward,
            over=terminated,
            cut=truncated,
            act={"illegal": 1.0} if forbidden else {},
            readable=action is not None,
            info=info,
        )

    def close(self) -> None:
        self._environment.close()

    # ---- abilities ----------------------------------------------------------------------------------------
    def snapshot(self) -> Any:
        return copy.deepcopy((self._environment, self._last, self._info, self._turn, self._score))

    def restore(self, state: Any) -> None:
        self._environment, self._last, self._info, self._turn, self._score = copy.deepcopy(state)

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
        space = self._visible.space
        seen, _ = self._visible.split(self._last)
        vector = None if self.vector_size is None else np.asarray(spaces.flatten(space, seen), np.float32)
        legal = self._legal()
        if self._describe is not None:
            text = self._describe(self._environment.unwrapped, self._last)
        elif isinstance(space, spaces.Box) and vector is not None:
            text = " ".join(f"{number:.2f}" for number in vector)
        else:
            text = in_words(space, seen)
        if legal is not None and self._describe is None and self._names is not None:
            text += f"\nlegal actions: {', '.join(self._names[place] for place in legal)}"
        key = None
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            key = str(seen)
        elif self._exact:
            key = content_digest("gymnasium", text)
        return Observation(text=text, vector=vector, legal=self._names if legal is None else legal, state_key=key)

    def _legal(self) -> list[int] | None:
        """The indices that the action mask allows; None without a mask."""
        if self._actions is None:
            return None
        mask = self._visible.split(self._last)[1]
        mask = self._info.get(MASK) if mask is None else mask
        return legal_places(self._environment.action_space, self._actions, mask, where=self._where)

    def _forbids(self, action: Any) -> bool:
        """Whether the action mask forbids an action."""
        legal = self._legal()
        return legal is not None and not any(np.array_equal(action, self._actions[place]) for place in legal)  # type: ignore[index]

    def _told(self) -> dict[str, Any]:
        """What is kept of the environment's `info`, with the success that it tells."""
        told = kept("gymnasium", self._info)
        success = succeeded(self._info) if self._tells_success else None
        return told if success is None else told | {"success": success}

    def _read(self, value: Any) -> Any:
        """The element of the action space that a value means, or None if it means none."""
        space = self._environment.action_space
        if self._actions is None or self._names is None:
            return in_space(space, value)
        if isinstance(value, str):
            value = read_leniently(value, self._named)
        elif isinstance(value, np.ndarray):
            value = value.item() if value.size == 1 else in_space(space, value)
        if isinstance(value, np.ndarray):  # of a MultiDiscrete space
            return value
        known = isinstance(value, (int, np.integer)) and 0 <= value < len(self._actions)
        return self._actions[int(value)] if known else None

    def _named(self, text: str) -> Any:
        """The index of the action with this name, or with these digits; None, if the text is neither."""
        assert self._names is not None
        word = " ".join(text.lower().replace(",", " ").split())
        return self._names.index(word) if word in self._names else int(word) if word.isdecimal() else None


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
    acts, seen = environment.action_space, environment.observation_space
    if not is_readable(acts) or isinstance(acts, spaces.OneOf | spaces.Sequence):
        raise RecipeError(
            where=where,
            what=f"its action space is {acts}, which agents cannot write.",
            remedy="Wrap the environment so that its actions are Discrete, Text, MultiDiscrete, MultiBinary, a Box "
            "with finite bounds, or a Dict or a Tuple of these.",
        )
    if isinstance(acts, spaces.Box) and not acts.is_bounded():
        raise RecipeError(
            where=where,
            what=f"its action space is {acts}, a Box without bounds.",
            remedy="Wrap the environment so that its actions are Discrete, or a Box with finite bounds.",
        )
    if not is_readable(seen):
        raise RecipeError(
            where=where,
            what=f"its observation space is {seen}, which has no vector of fixed size and no words.",
            remedy="Wrap the environment so that its observations are Text, Box, Discrete, MultiDiscrete, MultiBinary, "
            "or a Tuple or Dict of these.",
        )
