"""`Exported` gives an environment Gymnasium's spaces. The exports to Gymnasium and to PettingZoo are made from it."""

from __future__ import annotations

import asyncio
import inspect
import string
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import has, sizes_of
from palaestra.errors import RecipeError, UnknownName
from palaestra.registry import part

Seen = Literal["auto", "vector", "text"]
Acts = Literal["auto", "index", "text"]
CHARACTERS = frozenset(string.printable + "←↑→↓×·…–°äöüß⊢∧∨¬→⊥φ≤≥≠√π█▓▒░│─┌┐└┘")


class Exported:
    """An environment with spaces, whose observations and actions are elements of these.

    Args: as of palaestra.envs.adapters.exports.gymnasium.as_gymnasium.

    Raises: RecipeError, if the environment has no such observations or actions; UnknownName.
    """

    def __init__(
        self, environment: Any, options: Mapping[str, Any] | None, see: Seen, act: Acts, split: str, longest: int
    ) -> None:
        named = isinstance(environment, str)
        self.inner: Any = part("environment", environment).target(**(options or {})) if named else environment
        self.name = environment if named else type(environment).__name__
        self.agents: tuple[str, ...] = self.inner.agents
        self.split, self.longest = split, longest
        self._loop = asyncio.new_event_loop()
        size, count = sizes_of(self.inner)
        self._refuse(see == "vector" and not size, "see: vector", "vectors")
        self._refuse(act == "index" and not count, "act: index", "numbered actions")
        self.by_vector = bool(size) and see != "text"
        self.by_index = bool(count) and act != "text"
        text: Any = spaces.Text(longest, min_length=0, charset=CHARACTERS)
        self.seen: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (int(size or 0),)) if self.by_vector else text
        self.acts: spaces.Space[Any] = spaces.Discrete(int(count or 0)) if self.by_index else text

    # ---- running ------------------------------------------------------------------------------------------
    def task(self, seed: int, options: Mapping[str, Any] | None) -> Task:
        """The task in `options["task"]` if there is one, else the task of the seed."""
        chosen = (options or {}).get("task")
        if isinstance(chosen, Task):
            return chosen
        if not has(self.inner, "tasks"):
            return Task(env=self.name, seed=seed, split=self.split)
        made: Task = self.inner.tasks(self.split, 1, seed)[0]
        return made

    def reset(self, task: Task) -> StepResult:
        return self._wait(self.inner.reset(task))

    def step(self, values: Mapping[str, Any]) -> StepResult:
        return self._wait(self.inner.step({agent: self.action(value) for agent, value in values.items()}))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._wait(self.inner.close())
            self._loop.close()

    def _wait(self, result: Any) -> Any:
        return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

    # ---- translating --------------------------------------------------------------------------------------
    def action(self, value: Any) -> Action:
        """The Action for an element of the action space."""
        return Action(value=int(value)) if self.by_index else Action(text=str(value))

    def look(self, seen: Observation | None) -> Any:
        """An observation as an element of the observation space. Without one: zeros, or an empty text."""
        if self.by_vector:
            vector = None if seen is None else seen.vector
            return np.zeros(self.seen.shape or (0,), np.float32) if vector is None else vector.astype(np.float32)
        if seen is None:
            return ""
        text = (
            seen.text
            if seen.text is not None
            else "\n".join(f"{m['role']}: {m['content']}" for m in seen.messages or ())
        )
        if seen.instruction:
            text = f"{seen.instruction}\n{text}"
        return "".join(letter if letter in CHARACTERS else "?" for letter in text)[-self.longest :]

    def mask(self, seen: Observation | None, *, asked: bool = True) -> np.ndarray:
        """int8 (actions,): 1 for each legal action. All are 1 if the observation lists no legal indices."""
        count = int(getattr(self.acts, "n", 0))
        legal = None if seen is None or not asked else seen.legal
        if legal is None or not len(legal) or not isinstance(legal[0], int | np.integer):
            return np.ones(count, np.int8)
        mask = np.zeros(count, np.int8)
        mask[list(legal)] = 1
        return mask

    def told(self, seen: Observation | None) -> dict[str, Any]:
        """The `info` of an observation: the legal actions, and its text if the agent sees the vector."""
        found: dict[str, Any] = {}
        if seen is None:
            return found
        if self.by_index:
            found["action_mask"] = self.mask(seen)
        elif seen.legal is not None:
            found["legal"] = [str(choice) for choice in seen.legal]
        if self.by_vector and seen.text is not None:
            found["text"] = seen.text
        return found

    def _refuse(self, wrong: bool, option: str, lacking: str) -> None:
        if wrong:
            raise RecipeError(
                where=f"export of {self.name}, {option}",
                what=f"the environment has no {lacking}.",
                remedy="Leave the option out. Then texts are used.",
            )


def only_agent(exported: Exported) -> str:
    """The name of an environment's only agent.

    Raises: UnknownName, if there are several agents.
    """
    if len(exported.agents) > 1:
        raise UnknownName(
            where=f"export of {exported.name}",
            what=f"it has {len(exported.agents)} agents, and a Gymnasium environment has one.",
            options=exported.agents,
            remedy="Use `as_parallel` or `as_aec` of palaestra.envs.adapters.exports.pettingzoo.",
        )
    return exported.agents[0]
