"""Sums: add two numbers and answer in one act. The smallest environment whose answers can be checked."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "solver"
PLACES = Annotated[int, pydantic.Field(ge=1, le=9)]


def spell(number: int, places: int = 1) -> str:
    """The digits of a number, `places` or more, such as `0 7`. The spaces keep two digits out of one token."""
    return " ".join(str(number).zfill(places))


def read(text: str) -> int | None:
    """The number whose digits a text has, with or without spaces. None if the text has anything else."""
    digits = "".join(text.split())
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def _numbers(world: Mapping[str, Any], seed: int) -> tuple[int, int]:
    draw = random.Random(seed)
    return draw.randint(0, world["most"]), draw.randint(0, world["second"])


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One sum: both numbers, how many digits each is shown with, and how often the expert was asked."""

    one: int
    other: int
    digits: int
    seed: int
    calls: int = 0


@register("environment", "sums")
class Sums(KeepsState[State]):
    """Add two numbers in one act: the answer to `2 3 + 4 8` is `0 7 1`.

    Args:
        digits: digits of each number. Higher: more carries. Usual: 2.
        most: the largest first number; None: the largest with `digits` digits. Lower: fewer different sums.
        second: the largest second number; None: the largest first number. Lower: the sum is nearer to the first number,
            and is learned sooner.
        slips: probability that one digit of the expert's answer is wrong, drawn anew at each call. Higher: a policy
            that clones the expert is right less often. Usual: 0, and 0.4 where a clone shall have more to learn.
        held_out: ask a quarter of all sums in evaluations only. False: splits differ in their seeds only, and
            evaluations repeat sums of training. This is for options with so few sums that a quarter is too few.

    Reward: 1 for the right number, else 0. Leading zeros do not matter. An answer that is no number is `invalid`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "phrases")
    one_act = True
    provides = frozenset({"state_key", "outcome"})  # columns of a table of its episodes
    phrases = ("fine", "error") * 2  # words of judges, which a tokenizer must know

    def __init__(
        self,
        *,
        digits: PLACES = 2,
        most: PositiveInt | None = None,
        second: PositiveInt | None = None,
        slips: Fraction = 0.0,
        held_out: bool = False,
    ) -> None:
        first = min(most or 10**digits - 1, 10**digits - 1)
        self._params = {"digits": digits, "most": first, "second": min(second or first, 10**digits - 1)}
        self._slips, self._held_out = slips, held_out

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "Add two numbers whose digits are written with spaces between them. Write the digits of the sum with "
            "spaces between them, and one digit more than the longer number has, if need be with a 0 before it. "
            "Write nothing else.",
            None,
            example="0 7 1",
            ending="The episode has one answer. It succeeds if the answer is right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` sums. With `held_out`, training, evaluation and other splits have different sums."""
        return seeded_tasks("sums", self._params, split, n, seed, content=self.content if self._held_out else None)

    def content(self, task: Task) -> Any:
        """The two numbers."""
        return list(_numbers({**self._params, **task.params}, task.seed))

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        one, other = _numbers(world, task.seed)
        self.state = State(one=one, other=other, digits=world["digits"], seed=task.seed)
        text = f"{spell(one, world['digits'])} + {spell(other, world['digits'])}"
        return single(AGENT, Observation(text=text, state_key=text))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        value = actions[AGENT].value
        number = read(value) if isinstance(value, str) else None
        right = number == self.state.one + self.state.other
        self.close()
        return single(AGENT, None, reward=float(right), over=True, readable=number is not None, info={"success": right})

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The sum, with one digit more than the numbers have. A slip makes one of its digits wrong."""
        state = self.state
        self.state = replace(state, calls=state.calls + 1)
        draw = random.Random(derive(state.seed, "expert", state.calls))
        digits = list(str(state.one + state.other).zfill(state.digits + 1))
        if draw.random() < self._slips:
            place = draw.randint(1, state.digits)
            digits[place] = draw.choice([digit for digit in "0123456789" if digit != digits[place]])
        return Action(text=" ".join(digits))
