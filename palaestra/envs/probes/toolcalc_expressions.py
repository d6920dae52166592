"""Expressions of toolcalc: numbers and operations, worked out from left to right. Some numbers have names."""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

NAMES = ("red", "blue", "gold", "gray")
OPERATORS = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
OPERATIONS = tuple(OPERATORS)
NAMED = 0.5  # probability that a number of the family "named" must be looked up
LARGE = 0.7  # probability of a number of two digits, in all families but "small"
Family = Literal["small", "large", "named"]
FAMILIES: tuple[Family, ...] = get_args(Family)
Operation = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """`17 plus red times 3`, worked out from left to right: (17 + red) · 3."""

    start: int
    operations: tuple[Operation, ...]
    numbers: tuple[int, ...]
    names: tuple[str | None, ...]  # None: the number is written out
    family: Family
    results: tuple[int, ...]  # after 0, 1, … operations

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.results[-1]


def apply(operation: Operation, left: int, right: int) -> int:
    """`left` plus, minus or times `right`."""
    return int(OPERATORS[operation](left, right))


@lru_cache(maxsize=4096)
def build(fewest: int, most: int, families: tuple[Family, ...], seed: int) -> Expression:
    """An expression of one of the families, all equally likely."""
    draw = random.Random(seed)
    family, count = draw.choice(families), draw.randint(fewest, most)
    start, *numbers = (_number(family, draw) for _ in range(count + 1))
    operations = tuple(draw.choice(OPERATIONS) for _ in range(count))
    names: list[str | None] = [None] * count
    if family == "named":
        hidden = [place for place in range(count) if draw.random() < NAMED] or [draw.randrange(count)]
        for place, name in zip(hidden, draw.sample(NAMES, len(NAMES)), strict=False):
            names[place] = name
    results = [start]
    for operation, number in zip(operations, numbers, strict=True):
        results.append(apply(operation, results[-1], number))
    return Expression(
        start=start,
        operations=operations,
        numbers=tuple(numbers),
        names=tuple(names),
        family=family,
        results=tuple(results),
    )


def _number(family: Family, draw: random.Random) -> int:
    return draw.randint(10, 99) if family != "small" and draw.random() < LARGE else draw.randint(2, 9)
