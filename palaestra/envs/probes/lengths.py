"""Lengths: answers that are right or wrong, short or long. Only being right is rewarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import choice, read_choice
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import PositiveInt, register

AGENT = "writer"
RIGHT, WRONG, STOP = ACTIONS = ("right", "wrong", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one answer. `right` is None before the first act."""

    turn: int = 0
    right: bool | None = None
    seed: int = 0


@register("environment", "lengths")
class Lengths(KeepsState[State]):
    """A bandit with answers of two lengths. It shows what a loss aggregation does to the lengths of responses.

    The first act chooses the answer: `right` is right, and anything else is wrong. In turn `short` the act `stop` ends
    the answer; otherwise the answer ends in turn `long`. In other turns an act changes nothing. The agent sees the turn
    and whether its answer is right, so it can learn different lengths for right and wrong answers. No length is
    rewarded, so an unbiased policy gradient changes no length in expectation.

    Args:
        short, long: turns of a short and of a long answer, 1 < short < long. Usual: 3 and 12.

    Reward: 1 at the end of a right answer, else 0. The last `info` tells the turns of the answer, as `right_length` or
    as `wrong_length`. An action is given as text or as an index into `actions`. An unreadable first act is a wrong
    answer; a later one does not stop it. `vector` is one-hot: the turn; then not answered, right or wrong.

    Raises: RecipeError, unless `short` is below `long`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns of a table of its episodes
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

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You choose an answer, and then when it ends. The first word counts: right is right.",
            {
                "right": "",
                "wrong": "",
                "stop": "end the answer",
            },
            example="right",
            ending="The episode succeeds if the first word was right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks that differ in their seeds only. Splits share no seed."""
        return seeded_tasks("lengths", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The two lengths, which are the same for all tasks."""
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
        """The right answer. The task's seed decides its length; both are equally likely."""
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
