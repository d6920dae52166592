"""Any environment with one agent as a Gymnasium environment, for the libraries that train on these.

Knows Gymnasium's way to run episodes. Spaces and tasks come from `export_spaces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from palaestra.data import Observation, StepResult
from palaestra.envs.adapters.exports.spaces import Acts, Exported, Seen, only_agent
from palaestra.errors import ContractError

# gymnasium.make("palaestra.envs.adapters.exports.gymnasium:palaestra/World-v0", environment="rooms")
ID = "palaestra/World-v0"
SEEDS = 1 << 31


class Single(gymnasium.Env[Any, Any]):
    """What `as_gymnasium` makes. Inherits because Gymnasium asks for it."""

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
                where=f"export of {self._exported.name}", what="`step` was called before `reset`, or after the end."
            )
        result = self._exported.step({self._agent: action})
        over, cut = self._agent in result.terminated, self._agent in result.truncated
        over = over or not (result.observations or cut)
        self._running = not (over or cut)
        return self._look(result), float(result.rewards.get(self._agent, 0.0)), over, cut, self._told(result)

    def close(self) -> None:
        self._exported.close()

    def _look(self, result: StepResult) -> Any:
        """What is seen now; where the rules ended the episode, nothing new is: the same as before."""
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
    """An environment with one agent, played through Gymnasium's `reset` and `step`.

    Args:
        environment: an environment object, or a name as in a recipe: "rooms", "guess.py:Guess".
        options: of the environment named.
        see: "vector" (Box, float32) or "text" (Text); "auto": vectors, where it has them.
        act: "index" (Discrete) or "text" (Text); "auto": indices, where it has them.
        split: whose tasks are played: a seed s gives the first task of `tasks(split, 1, s)`. To play a certain task,
            `reset(options={"task": task})`.
        longest: characters of a text; a longer one loses its beginning.

    `info` is the environment's, with `action_mask` (or `legal`, as texts), `text` beside a vector, and after a reset
    the content hash of the task.
    Raises: RecipeError, UnknownName.
    """
    return Single(Exported(environment, options, see, act, split, longest))


if ID not in gymnasium.registry:
    gymnasium.register(id=ID, entry_point=f"{__name__}:as_gymnasium")
