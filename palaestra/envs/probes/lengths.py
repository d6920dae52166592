"""Lengths: a right or a wrong answer, short or long; only whether it is right matters.

Knows one choice of answer and one of length. All tasks are the same but for their seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import PositiveInt, register

AGENT = "writer"
RIGHT, WRONG, STOP = ACTIONS = ("right", "wrong", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one answer is; `right` is None until the first act."""

    turn: int = 0
    right: bool | None = None
    seed: int = 0


@register("environment", "lengths")
class Lengths:
    """A bandit with answers of two lengths, for what an aggregation does to the lengths of responses.

    The first act chooses the answer: `right` is right, all else is wrong. In turn `short` the answer ends if the act is
    `stop`; otherwise it ends in turn `long`. In all other turns an act changes nothing. The agent sees the turn and
    whether its answer is right, so that right and wrong answers can take different lengths. Nothing rewards a length:
    an unbiased policy gradient moves none.

    Args:
        short, long: turns of the two answers, 1 < short < long. Usual: 3 and 12.

    Reward: 1 at the end of a right answer, else 0. The last `info` tells `right_length` or `wrong_length`, its turns.
    `actions` lists all actions; an index into it is taken as well as its text. What cannot be read counts as wrong, or
    goes on. `vector` is one-hot: the turn; not answered, right, wrong.

    Raises: RecipeError, for lengths in another order.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have
    actions: tuple[str, ...] = ACTIONS
    action_count: int = len(ACTIONS)

    def __init__(self, *, short: Annotated[int, pydantic.Field(ge=2)] = 3, long: PositiveInt = 12) -> None:
        if short >= long:
            raise RecipeError(
                where="environment: lengths",
                what=f"`short: {short}` is not below `long: {long}`.",
                remedy="Give two lengths, for instance short: 3, long: 12.",
            )
        self._params = {"short": short, "long": long}
        self._short, self._long = short, long
        self.vector_size = long + 3
        self._state: State | None = None

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, equal but for their seed; splits never share one."""
        return seeded_tasks("lengths", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The same for all tasks: the two lengths."""
        return [self._short, self._long]

    def reset(self, task: Task) -> StepResult:
        self._state = State(seed=task.seed)
        return StepResult(observations={AGENT: self._observe(self._state)})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self._playing()
        act = read(actions[AGENT].value)
        right = act == RIGHT if before.right is None else before.right
        state = self._state = State(turn=before.turn + 1, right=right, seed=before.seed)
        over = state.turn == self._long or (state.turn == self._short and act == STOP)
        info: dict[str, Any] = {} if act is not None else {"invalid": {AGENT: True}}
        if over:
            info |= {"success": right, f"{'right' if right else 'wrong'}_length": state.turn}
        return StepResult(
            observations={} if over else {AGENT: self._observe(state)},
            rewards={AGENT: float(over and right)},
            terminated=frozenset({AGENT} if over else ()),
            info=info,
        )

    def close(self) -> None:
        self._state = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The right answer; of which length, the task's seed decides, both equally often."""
        state = self._playing()
        stops = state.turn + 1 == self._short and state.seed // 2 % 2  # the last bit of a seed tells its split
        text = STOP if stops else RIGHT
        return Action(text=text, value=ACTIONS.index(text))

    def snapshot(self) -> Any:
        return self._state

    def restore(self, state: Any) -> None:
        self._state = state

    # ---- observations -------------------------------------------------------------------------------------
    def _playing(self) -> State:
        if self._state is None:
            raise ContractError(where="environment lengths", what="`step` was called before `reset`.")
        return self._state

    def _observe(self, state: State) -> Observation:
        answer = "no answer" if state.right is None else "right" if state.right else "wrong"
        vector = np.zeros(self.vector_size, np.float32)
        vector[state.turn] = 1
        vector[self._long + (0 if state.right is None else 1 if state.right else 2)] = 1
        return Observation(
            text=f"turn {state.turn + 1} . {answer} so far",
            vector=vector,
            legal=list(ACTIONS),
            state_key=f"{state.turn}/{answer}",
        )


def read(value: Any) -> str | None:
    """The action meant by a text or an index; None if it cannot be read."""
    if isinstance(value, str):
        return value.strip().lower() if value.strip().lower() in ACTIONS else None
    if isinstance(value, int | np.integer) and 0 <= value < len(ACTIONS):
        return ACTIONS[int(value)]
    return None
