"""Chains of operations: how references are drawn, written as an expression, told in words, and mutated.

Knows operations on numbers, strings and lists. Knows nothing of tests.
"""

from __future__ import annotations

import ast
import functools
import random
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Domain = Literal["number", "string", "list"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)
LETTERS = "abcdefghi"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a chain.

    Attributes:
        written: the expression; {} is what it is applied to, {c} a number and {l} a letter.
        plain, other: the same in words, twice.
        takes, gives: kinds of values. least: the smallest number that makes sense.
    """

    written: str
    plain: str
    other: str
    takes: Domain
    gives: Domain
    least: int = 1

    @property
    def fixed(self) -> bool:
        """Whether it has no number and no letter."""
        return "{c}" not in self.written and "{l}" not in self.written


def _same(kind: Domain, *rows: tuple[str, str, str, int]) -> list[Operation]:
    return [Operation(written, plain, other, kind, kind, least) for written, plain, other, least in rows]


def _number(kind: Domain, *rows: tuple[str, str, str]) -> list[Operation]:
    return [Operation(written, plain, other, kind, "number") for written, plain, other in rows]


# The first ones are the easiest: `operators` of each kind are used.
OPERATIONS: tuple[Operation, ...] = (
    *_same(
        "number",
        ("{} + {c}", "add {c}", "increase by {c}", 1),
        ("{} * {c}", "multiply by {c}", "scale by {c}", 2),
        ("{} - {c}", "subtract {c}", "decrease by {c}", 1),
        ("{} % {c}", "take the remainder by {c}", "keep what is left of parts of {c}", 2),
        ("{} // {c}", "divide by {c}, rounded down", "count the whole parts of {c}", 2),
        ("max({}, {c})", "raise to at least {c}", "no less than {c}", 1),
        ("min({}, {c})", "lower to at most {c}", "no more than {c}", 1),
        ("abs({})", "drop the sign", "make it positive", 1),
    ),
    *_same(
        "string",
        ("{} + '{l}'", "put {l} at the end", "append {l}", 1),
        ("{}[::-1]", "reverse", "turn around", 1),
        ("'{l}' + {}", "put {l} at the start", "prepend {l}", 1),
        ("{}.upper()", "make upper case", "use capitals", 1),
        ("{}[{c}:]", "drop the first {c}", "leave out {c} at the start", 1),
        ("{}[:{c}]", "take the first {c}", "keep {c} from the start", 1),
        ("{} * {c}", "repeat {c} times", "write {c} times", 2),
    ),
    *_number("string", ("len({})", "count the letters", "measure the length")),
    *_same(
        "list",
        ("{}[::-1]", "reverse", "turn around", 1),
        ("sorted({})", "sort", "put in order", 1),
        ("{} + [{c}]", "put {c} at the end", "append {c}", 1),
        ("{}[{c}:]", "drop the first {c}", "leave out {c} at the start", 1),
        ("{}[:{c}]", "take the first {c}", "keep {c} from the start", 1),
    ),
    *_number(
        "list",
        ("sum({})", "add all up", "take the total"),
        ("{}[0]", "take the first", "pick the foremost"),
        ("max({})", "take the largest", "pick the greatest"),
        ("len({})", "count", "take the length"),
        ("{}[-1]", "take the last", "pick the hindmost"),
    ),
)


class Step(NamedTuple):
    """An operation with its number; a letter is told by its number too."""

    operation: Operation
    number: int

    def put(self, text: str) -> str:
        """Fill in a text of the operation, but for {}."""
        return text.replace("{c}", str(self.number)).replace("{l}", LETTERS[(self.number - 1) % len(LETTERS)])


Chain = tuple[Step, ...]


@functools.lru_cache(maxsize=16384)
def written(chain: Chain, start: str = "x") -> str:
    """The chain as an expression, with no more parentheses than needed."""
    text = start
    for step in chain:
        text = f"({step.put(step.operation.written).replace('{}', f'({text})', 1)})"
    return ast.unparse(ast.parse(text, mode="eval"))


def told(chain: Chain, *, paraphrased: bool) -> str:
    """The chain in words."""
    return ", then ".join(step.put(step.operation.other if paraphrased else step.operation.plain) for step in chain)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which operations there are: the first `operators` of each pair of kinds, with numbers up to `constants`."""

    operators: int
    constants: int

    def steps(self, takes: Domain) -> list[Step]:
        """All steps that take such a value."""
        return [step for gives in DOMAINS for step in self._steps(takes, gives)]

    def _steps(self, takes: Domain, gives: Domain) -> list[Step]:
        fitting = [one for one in OPERATIONS if (one.takes, one.gives) == (takes, gives)][: self.operators]
        return [
            Step(one, number)
            for one in fitting
            for number in range(one.least, one.least + 1 if one.fixed else max(self.constants, one.least) + 1)
        ]

    def draw(self, domain: Domain, length: int, draw: random.Random) -> Chain:
        """A chain of this length. Operations are drawn evenly, then their numbers."""
        chain: list[Step] = []
        while len(chain) < length:
            steps = self.steps(domain)
            operation = draw.choice(list(dict.fromkeys(step.operation for step in steps)))
            chain.append(draw.choice([step for step in steps if step.operation == operation]))
            domain = operation.gives
        return tuple(chain)

    def mutants(self, chain: Chain, draw: random.Random) -> list[Chain]:
        """Chains that differ in one step, lack one, or have two changed places; in random order."""
        found: list[Chain] = []
        for place, step in enumerate(chain):
            before, after = chain[:place], chain[place + 1 :]
            others = [
                one
                for one in self.steps(step.operation.takes)
                if one != step and one.operation.gives == step.operation.gives
            ]
            found += [(*before, one, *after) for one in others]
            if len(chain) > 1 and step.operation.takes == step.operation.gives:
                found.append((*before, *after))
            if after and step.operation.takes == step.operation.gives == after[0].operation.gives:
                found.append((*before, after[0], step, *after[1:]))
        found = [one for one in dict.fromkeys(found) if one != chain]
        draw.shuffle(found)
        return found
