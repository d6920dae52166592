"""The environment `counting`: copy a long row of letters, and replace each mark by the number of marks so far.

The environment is deterministic; tasks differ by their seed only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.data.abilities import without
from palaestra.envs.kit.choices import choice
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "writer"
LETTERS = "abcdefgh"
MARK = "#"
Few = Annotated[int, pydantic.Field(ge=2, le=8)]


def _row(world: Mapping[str, Any], seed: int) -> str:
    """The row of a seed."""
    draw = random.Random(seed)
    length = round(math.exp(draw.uniform(math.log(world["shortest"]), math.log(world["longest"]))))
    letters = LETTERS[: world["letters"]]
    return "".join(MARK if draw.random() < world["marks"] else draw.choice(letters) for _ in range(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one row is.

    Attributes:
        truth: the right answer to each item of the row. place: items done. said: the number that was written last.
        slips: wrong answers so far.
    """

    row: str
    truth: tuple[str, ...]
    place: int = 0
    said: int = 0
    slips: int = 0


@register("environment", "counting")
class Counting(KeepsState[State]):
    """A long response whose length differs widely and whose result is known at its very end.

    The row of a task has between `shortest` and `longest` items, and short rows are as frequent as rows of twice their
    length (log-uniform). Each turn asks for the next `chunk` items. The answer to a letter is the letter. The answer to
    a mark `#` is the number of marks so far, where `numbers` is followed by 1. The agent sees the number that it wrote
    last and whether it has made a mistake, so one observation has all that matters.

    Args:
        shortest, longest: items of a row. Higher: longer episodes. Usual: 64 and 200.
        chunk: items per turn. 1: an action is one symbol, and there are vectors for network policies. Higher: fewer
            turns with longer responses, whose symbols are separated by spaces; for language policies.
        letters, numbers: how many there are, 2–8. Higher: more to learn.
        marks: share of items that are marks. Higher: more counting, less copying.

    Reward: 1 at the end if everything is right, else 0. `score` is then the share of right answers. A symbol that
    cannot be read, or is missing in a chunk, is wrong. `actions` has all symbols (chunk 1); an index into it is
    accepted as well as its text.

    Raises: RecipeError, if `shortest` exceeds `longest`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        shortest: PositiveInt = 64,
        longest: PositiveInt = 200,
        chunk: PositiveInt = 1,
        letters: Few = 4,
        numbers: Few = 4,
        marks: Fraction = 0.3,
    ) -> None:
        Refusals("environment: counting").when(
            shortest > longest,
            f"shortest {shortest} is more than longest {longest}.",
            "Set `shortest` to at most `longest`.",
        )
        self._params = {
            "shortest": shortest,
            "longest": longest,
            "letters": letters,
            "numbers": numbers,
            "marks": marks,
        }
        self._chunk, self._numbers, self._longest = chunk, numbers, longest
        self._letters = LETTERS[:letters]
        self.actions = (*self._letters, *(str(number) for number in range(1, numbers + 1)))
        if chunk == 1:
            self.action_count = len(self.actions)
            self.vector_size = (letters + 1) + (numbers + 1) + 3
        else:
            self.abilities = without(self.abilities, "vector")

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        several = self._chunk > 1
        example = " ".join(answers([LETTERS[0], MARK, LETTERS[1]] * self._chunk, self._numbers)[: self._chunk])
        return write_manual(
            "You copy a long row piece by piece. Every message shows the next "
            + (f"{self._chunk} items" if several else "item")
            + f" of it after `write`: letters, and marks `{MARK}`. For a letter, write the letter. For a mark, write "
            f"the number of marks so far, this one included, where 1 follows after {self._numbers}. The message also "
            "has the number that you wrote last, how many items are left, and whether you have made a slip."
            + (" Write one symbol for each item, with spaces between them." if several else ""),
            None,
            example=example,
            ending="Write nothing else. The episode succeeds if everything is right to the end of the row.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` rows; splits never share a seed."""
        return seeded_tasks("counting", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The row."""
        return _row({**self._params, **task.params}, task.seed)

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        row = _row(world, task.seed)
        self.state = State(row=row, truth=tuple(answers(row, world["numbers"])))
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before, asked = self.state, self._asked()
        written = self._read(actions[AGENT].value)
        given = [*(written or ())[: len(asked)]]
        slips = before.slips + len(asked) - sum(one == other for one, other in zip(given, asked, strict=False))
        if written is not None and len(written) > len(asked):
            slips += 1  # what nobody asked for
        said = next((int(symbol) for symbol in reversed(given) if symbol.isdigit()), before.said)
        self.state = after = replace(before, place=before.place + len(asked), said=said, slips=slips)
        over = after.place >= len(after.row)
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=float(over and slips == 0),
            over=over,
            readable=written is not None,
            info={"success": slips == 0, "score": max(1 - slips / len(after.row), 0.0)} if over else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The right answers of this turn."""
        asked = self._asked()
        if self._chunk > 1:
            return Action(text=" ".join(asked))
        return choice(asked[0], self.actions)

    # ---- answers and observations -------------------------------------------------------------------------
    def _asked(self) -> tuple[str, ...]:
        """The right answers of this turn."""
        return self.state.truth[self.state.place : self.state.place + self._chunk]

    def _read(self, value: Any) -> list[str] | None:
        """The symbols meant by a text or an index; None if they cannot be read."""
        if isinstance(value, str):
            symbols = value.lower().split()
            return symbols if symbols and all(symbol in self.actions for symbol in symbols) else None
        if isinstance(value, int | np.integer) and self._chunk == 1 and 0 <= value < len(self.actions):
            return [self.actions[int(value)]]
        return None

    def _observe(self, state: State) -> Observation:
        shown = state.row[state.place : state.place + self._chunk]
        left = len(state.row) - state.place
        return Observation(
            text=f"write {' '.join(shown)} . last number {state.said} . {left} left . "
            f"{'a slip' if state.slips else 'no slip'}",
            vector=self._vector(state, shown, left) if self._chunk == 1 else None,
            legal=list(self.actions) if self._chunk == 1 else None,
            state_key=f"{state.place}/{state.said}/{state.slips}",
        )

    def _vector(self, state: State, shown: str, left: int) -> np.ndarray:
        """One-hot: the item, the last number; then slip, share of the row that is left, items left of the longest."""
        found = np.zeros(self.vector_size, np.float32)
        items = len(self._letters) + 1
        found[len(self._letters) if shown == MARK else self._letters.index(shown)] = 1
        found[items + state.said] = 1
        found[-3:] = (float(state.slips > 0), left / len(state.row), left / self._longest)
        return found


def answers(row: Sequence[str], numbers: int) -> list[str]:
    """The right answer to each item of a row."""
    count, right = 0, []
    for item in row:
        count += item == MARK
        right.append(str((count - 1) % numbers + 1) if item == MARK else item)
    return right
