"""Chains of operations, from which references are made: drawn, written as an expression or in words, and mutated.

A step of a chain changes the value so far, or joins it with a branch, another value that is made from the input:
`max(x) - min(x)` is "take the largest, then subtract the smallest of the input".
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
NUMBERS: tuple[Domain, Domain] = ("number", "number")


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a chain.

    Attributes:
        written: the expression. {} is the value so far, {c} a number, {l} a letter, and {y} a branch.
        plain, other: two wordings of it.
        takes, gives: kinds of its input and output.
        least: smallest number that makes sense.
        joins: kind of its branch; None: it has no branch.
    """

    written: str
    plain: str
    other: str
    takes: Domain
    gives: Domain
    least: int = 1
    joins: Domain | None = None

    @property
    def fixed(self) -> bool:
        """Whether it has neither a number nor a letter."""
        return "{c}" not in self.written and "{l}" not in self.written


@dataclass(frozen=True, slots=True)
class Branch:
    """A value made from the input, which a step joins with the value so far. {} is the input, {c} a number."""

    written: str
    plain: str
    other: str
    takes: Domain
    gives: Domain
    least: int = 0  # smallest number; 0: it has no number

    def with_number(self, number: int) -> Branch:
        """The branch with this number in place of {c}."""
        written, plain, other = (text.replace("{c}", str(number)) for text in (self.written, self.plain, self.other))
        return Branch(written, plain, other, self.takes, self.gives)


def _same(kind: Domain, *rows: tuple[str, str, str, int]) -> list[Operation]:
    return [Operation(written, plain, other, kind, kind, least) for written, plain, other, least in rows]


def _number(kind: Domain, *rows: tuple[str, str, str]) -> list[Operation]:
    return [Operation(written, plain, other, kind, "number") for written, plain, other in rows]


def _joined(kind: Domain, *rows: tuple[str, str, str]) -> list[Operation]:
    return [Operation(written, plain, other, kind, kind, joins=kind) for written, plain, other in rows]


EASY = 8  # with at most so many `operators`, no step has a branch
# Easiest first. The first `operators` for each pair of kinds are used.
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
    *_joined(
        "number",
        ("{} + {y}", "add {y}", "increase by {y}"),
        ("{} * {y}", "multiply by {y}", "scale by {y}"),
        ("{} - {y}", "subtract {y}", "decrease by {y}"),
        ("max({}, {y})", "raise to at least {y}", "no less than {y}"),
        ("min({}, {y})", "lower to at most {y}", "no more than {y}"),
    ),
    Operation("[{}, {y}]", "make a list of it and {y}", "pair it with {y}", "number", "list", joins="number"),
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
    *_joined(
        "string",
        ("{} + {y}", "put {y} after it", "append {y}"),
        ("{y} + {}", "put {y} before it", "prepend {y}"),
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
    *_joined(
        "list",
        ("{} + {y}", "put {y} after it", "append {y}"),
        ("{y} + {}", "put {y} before it", "prepend {y}"),
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


BRANCHES: tuple[Branch, ...] = (
    Branch("{}", "the input", "what came in", "number", "number"),
    Branch("{} % {c}", "the remainder of the input by {c}", "what parts of {c} leave of the input", *NUMBERS, 2),
    Branch("{} // {c}", "the input divided by {c}, rounded down", "the whole parts of {c} in the input", *NUMBERS, 2),
    Branch("abs({})", "the input without its sign", "the size of the input", *NUMBERS),
    Branch("len({})", "the number of letters of the input", "the length of the input", "string", "number"),
    Branch("{}", "the input", "what came in", "string", "string"),
    Branch("{}[::-1]", "the reversed input", "the input from its end", "string", "string"),
    Branch("{}.upper()", "the input in upper case", "the input in capitals", "string", "string"),
    Branch("{}[:{c}]", "the first {c} of the input", "the {c} that begin the input", "string", "string", 1),
    Branch("{}[{c}:]", "the input without the first {c}", "what follows the first {c}", "string", "string", 1),
    Branch("len({})", "the count of the input", "the length of the input", "list", "number"),
    Branch("sum({})", "the sum of the input", "the total of the input", "list", "number"),
    Branch("max({})", "the largest of the input", "the greatest of the input", "list", "number"),
    Branch("min({})", "the smallest of the input", "the least of the input", "list", "number"),
    Branch("{}[0]", "the first of the input", "the foremost of the input", "list", "number"),
    Branch("{}[-1]", "the last of the input", "the hindmost of the input", "list", "number"),
    Branch("{}", "the input", "what came in", "list", "list"),
    Branch("{}[::-1]", "the reversed input", "the input from its end", "list", "list"),
    Branch("sorted({})", "the sorted input", "the input in order", "list", "list"),
    Branch("{}[:{c}]", "the first {c} of the input", "the {c} that begin the input", "list", "list", 1),
)


class Step(NamedTuple):
    """An operation with its number and its branch. The number also selects the letter."""

    operation: Operation
    number: int
    branch: Branch | None = None

    def put(self, text: str, branch: str = "") -> str:
        """Fill in everything but {} in a text of the operation."""
        letter = LETTERS[(self.number - 1) % len(LETTERS)]
        return text.replace("{c}", str(self.number)).replace("{l}", letter).replace("{y}", branch)


Chain = tuple[Step, ...]


@functools.lru_cache(maxsize=16384)
def written(chain: Chain, start: str = "x") -> str:
    """The chain as an expression, with no more parentheses than needed."""
    text = start
    for step in chain:
        # {v} is the value so far. It is filled in after the branch.
        changed = step.operation.written.replace("{}", "{v}", 1)
        branch = "" if step.branch is None else f"({step.branch.written.replace('{}', f'({start})')})"
        text = f"({step.put(changed, branch).replace('{v}', f'({text})', 1)})"
    return ast.unparse(ast.parse(text, mode="eval"))


def told(chain: Chain, *, paraphrased: bool) -> str:
    """The chain in words."""
    return ", then ".join(_told(step, paraphrased=paraphrased) for step in chain)


def _told(step: Step, *, paraphrased: bool) -> str:
    name = "other" if paraphrased else "plain"
    return step.put(getattr(step.operation, name), getattr(step.branch, name, ""))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The operations in use: the first `operators` for each pair of kinds, with numbers up to `constants`.

    Attributes:
        kinds: kinds of values that operations may give.
    """

    operators: int
    constants: int
    kinds: tuple[Domain, ...] = DOMAINS

    def steps(self, takes: Domain, start: Domain) -> list[Step]:
        """All steps that take a value of the kind `takes`, where the input is of the kind `start`."""
        return [step for gives in self.kinds for step in self._steps(takes, gives, start)]

    def _steps(self, takes: Domain, gives: Domain, start: Domain) -> list[Step]:
        fitting = [one for one in OPERATIONS if (one.takes, one.gives) == (takes, gives)][: self.operators]
        fitting = [one for one in fitting if one.joins is None or self.operators > EASY]
        return [
            Step(one, number, branch)
            for one in fitting
            for branch in ((None,) if one.joins is None else self._branches(start, one.joins))
            for number in range(one.least, one.least + 1 if one.fixed else max(self.constants, one.least) + 1)
        ]

    def _branches(self, start: Domain, gives: Domain) -> list[Branch]:
        """All branches that make a value of the kind `gives` from an input of the kind `start`."""
        fitting = [one for one in BRANCHES if (one.takes, one.gives) == (start, gives)]
        return [
            one.with_number(number)
            for one in fitting
            for number in (range(one.least, max(self.constants, one.least) + 1) if one.least else (0,))
        ]

    def draw(self, domain: Domain, length: int, draw: random.Random) -> Chain:
        """Draw a chain of this length: operations evenly, and then their numbers and branches."""
        chain: list[Step] = []
        start = domain
        while len(chain) < length:
            steps = self.steps(domain, start)
            operation = draw.choice(list(dict.fromkeys(step.operation for step in steps)))
            chain.append(draw.choice([step for step in steps if step.operation == operation]))
            domain = operation.gives
        return tuple(chain)

    def mutants(self, chain: Chain, draw: random.Random) -> list[Chain]:
        """Chains with one step changed, left out, or swapped with the next one, in random order."""
        found: list[Chain] = []
        start = chain[0].operation.takes
        for place, step in enumerate(chain):
            before, after = chain[:place], chain[place + 1 :]
            others = [
                one
                for one in self.steps(step.operation.takes, start)
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
