"""`as_gymnasium` makes a Gymnasium environment of any environment with one agent, for libraries that train on these.

Spaces and tasks are in `spaces.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from palaestra.data import Observation, StepResult
from palaestra.envs.adapters.exports.spaces import Acts, Exported, Seen, only_agent
from palaestra.errors import ContractError

# Used as gymnasium.make("palaestra.envs.adapters.exports.gymnasium:palaestra/World-v0", environment="rooms")
ID = "palaestra/World-v0"
SEEDS = 1 << 31


class Single(gymnasium.Env[Any, Any]):
    """The environment that `as_gymnasium` makes. Gymnasium requires that it inherits from `gymnasium.Env`."""

    metadata = {"render_modes": []}

    def __init__(self, exported: Exported) -> None:
        self._exported, self._agent = exported, only_agent(exported)
        self.observation_space, self.action_space = exported.seen, exported.acts
        self._seen: Observation | None = None
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(SEEDS)) if seed is None else seed
        task = self._exported.task(number, options)
        result = self._exported.reset(task)
        self._running = True
        return self._look(result), self._told(result) | {"task": task.content_hash}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise ContractError(
                where=f"export of {self._exported.name}",
                what="`step` was called before `reset`, or after the end of the episode.",
                remedy="Call `reset` first.",
            )
        result = self._exported.step({self._agent: action})
        over, cut = self._agent in result.terminated, self._agent in result.truncated
        over = over or not (result.observations or cut)
        self._running = not (over or cut)
        return self._look(result), float(result.rewards.get(self._agent, 0.0)), over, cut, self._told(result)

    def close(self) -> None:
        self._exported.close()

    def _look(self, result: StepResult) -> Any:
        """The present observation. An episode that the rules ended has no new one, so it is the one before."""
        self._seen = result.observations.get(self._agent) or result.last.get(self._agent) or self._seen
        return self._exported.look(self._seen)

    def _told(self, result: StepResult) -> dict[str, Any]:
        return dict(result.info) | self._exported.told(result.observations.get(self._agent))


def as_gymnasium(
    environment: Any,
    *,
    options: Mapping[str, Any] | None = None,
    see: Seen = "auto",
    act: Acts = "auto",
    split: str = "train",
    longest: int = 4000,
) -> Single:
    """An environment with one agent as a Gymnasium environment.

    Args:
        environment: an environment object, or a name as in a recipe: "rooms", "guess.py:Guess".
        options: the environment's options, if `environment` is a name.
        see: what the agent sees: "vector" (Box, float32) or "text" (Text). "auto": vectors if the environment has them,
            else texts.
        act: how the agent acts: "index" (Discrete) or "text" (Text). "auto": indices if the environment has them, else
            texts.
        split: the split whose tasks are played. The seed s plays the first task of `tasks(split, 1, s)`. Call
            `reset(options={"task": task})` to play a certain task.
        longest: most characters of a text. A longer text loses its beginning.

    `info` has what the environment tells, and `action_mask` or, for texts, `legal`; `text` if the observation is a
    vector; and after `reset` the content hash of the task as `task`.
    Raises: RecipeError, if the environment has no such observations or actions; UnknownName.
    """
    return Single(Exported(environment, options, see, act, split, longest))


if ID not in gymnasium.registry:
    gymnasium.register(id=ID, entry_point=f"{__name__}:as_gymnasium")
