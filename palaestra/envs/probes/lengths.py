"""Lengths: a right or a wrong answer, short or long; only whether it is right matters.

All tasks are the same but for their seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import choice, read_choice
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
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
class Lengths(KeepsState[State]):
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
        Refusals("environment: lengths").when(
            short >= long,
            f"`short: {short}` is not below `long: {long}`.",
            "Give two lengths, for instance short: 3, long: 12.",
        )
        self._params = {"short": short, "long": long}
        self._short, self._long = short, long
        self.vector_size = long + 3

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, equal but for their seed; splits never share one."""
        return seeded_tasks("lengths", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The same for all tasks: the two lengths."""
        return [self._short, self._long]

    def reset(self, task: Task) -> StepResult:
        self.state = State(seed=task.seed)
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        act = read_choice(actions[AGENT].value, ACTIONS)
        right = act == RIGHT if before.right is None else before.right
        state = self.state = State(turn=before.turn + 1, right=right, seed=before.seed)
        over = state.turn == self._long or (state.turn == self._short and act == STOP)
        return single(
            AGENT,
            None if over else self._observe(state),
            reward=float(over and right),
            over=over,
            readable=act is not None,
            info={"success": right, f"{'right' if right else 'wrong'}_length": state.turn} if over else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The right answer; of which length, the task's seed decides, both equally often."""
        state = self.state
        stops = state.turn + 1 == self._short and state.seed // 2 % 2  # the last bit of a seed tells its split
        return choice(STOP if stops else RIGHT, ACTIONS)

    # ---- observations -------------------------------------------------------------------------------------
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
