"""Sums: add two numbers, digit by digit; the smallest task whose answers are right or wrong and can be checked."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "solver"
PLACES = Annotated[int, pydantic.Field(ge=1, le=9)]


def spell(number: int, places: int = 1) -> str:
    """`0 7`: the digits with spaces between them, at least so many, so that a token never holds two of them."""
    return " ".join(str(number).zfill(places))


def read(text: str) -> int | None:
    """The number that digits with or without spaces spell; None if there is anything else."""
    digits = "".join(text.split())
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def _numbers(world: Mapping[str, Any], seed: int) -> tuple[int, int]:
    draw = random.Random(seed)
    return draw.randint(0, world["most"]), draw.randint(0, world["second"])


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One sum: both numbers, the digits that they are shown with, and how often the expert was asked."""

    one: int
    other: int
    digits: int
    seed: int
    calls: int = 0


@register("environment", "sums")
class Sums(KeepsState[State]):
    """`2 3 + 4 8` is answered by `0 7 1`, in one act.

    Args:
        digits: of both numbers. Higher: more to carry. Usual: 2.
        most: the largest first number; None: all that have so many digits. Lower: fewer different sums.
        second: the largest second number; None: as `most`. Lower: the sum is nearer to the first one, learned sooner.
        slips: probability that the expert's answer has a wrong digit; each call slips anew. Higher: who clones it is
            right less often. Usual: 0, and 0.4 where something shall be left to learn.
        held_out: ask a quarter of all sums in evaluations only. False: splits differ by their seeds, so that
            evaluations ask what training asked too; for few sums, of which a quarter would be too few.

    Reward: 1 for the right number, else 0; zeros before it do not matter. What is no number is `invalid`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "phrases")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have
    phrases = ("fine", "error") * 2  # what judges of an answer say: words for a tokenizer

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

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` sums; with `held_out` no split asks what another one asks."""
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
        """The sum, with one place more than the numbers have; by a slip one of its digits is another."""
        state = self.state
        self.state = replace(state, calls=state.calls + 1)
        draw = random.Random(derive(state.seed, "expert", state.calls))
        digits = list(str(state.one + state.other).zfill(state.digits + 1))
        if draw.random() < self._slips:
            place = draw.randint(1, state.digits)
            digits[place] = draw.choice([digit for digit in "0123456789" if digit != digits[place]])
        return Action(text=" ".join(digits))
