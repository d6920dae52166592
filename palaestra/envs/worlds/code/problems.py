"""Problems: a function to write, with its reference, wrong solutions (mutants), visible tests and hidden tests."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from palaestra.data import derive
from palaestra.envs.worlds.code.chains import Chain, Domain, Vocabulary, told, written
from palaestra.envs.worlds.code.grammar import Fault, evaluate, read
from palaestra.errors import RecipeError

POOL = 24  # inputs among which those of hidden tests are chosen
TRIES = 200  # most draws in search of a problem
FUNCTION, MODULE = "f", "solution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A call and the value that it must give.

    Attributes:
        x: the argument of the call.
        want: the expected value.
        kind: "good"; "trivial", if hardly any wrong solution fails it; "wrong", if `want` is not the right value.
    """

    x: Any
    want: Any
    function: str = FUNCTION
    module: str = MODULE
    kind: Literal["good", "trivial", "wrong"] = "good"

    __test__ = False  # so that pytest does not collect it

    @property
    def call(self) -> str:
        """The call as text, such as `f(3)`."""
        return f"{self.function}({self.x!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The options of the environment that decide what problems there are."""

    domains: tuple[Domain, ...] = ("number",)
    depth: tuple[int, int] = (1, 2)
    operators: int = 13
    constants: int = 9
    largest: int = 9
    mutants: int = 6
    examples: int = 3
    hidden: int = 8
    trivial: float = 0.0
    wrong: float = 0.0

    @property
    def vocabulary(self) -> Vocabulary:
        """The operations in use."""
        return Vocabulary(self.operators, self.constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A function to write. Its reference and its mutants are expressions in `x`. Every mutant fails a hidden test."""

    chain: Chain
    reference: str
    mutants: tuple[str, ...]
    visible: tuple[Test, ...]
    hidden: tuple[Test, ...]

    def told(self, *, paraphrased: bool) -> str:
        """The task in words."""
        return told(self.chain, paraphrased=paraphrased)


PROBES: dict[Domain, tuple[Any, ...]] = {
    "number": tuple(range(-20, 61)),
    "string": ("abc", "hello", "zyxwvu", "aabb", "jihg", "cabbage"),
    "list": ([1, 2, 3], [9, 1, 5, 2], [7, 7, 3], [4, 8, 6, 1, 2, 9], [3, 1, 2, 3, 1], [2, 5, 5, 8]),
}


def meaning(problem: Problem) -> list[str]:
    """What the function gives on many inputs. Functions that do the same are the same problem."""
    domain = problem.chain[0].operation.takes
    return [domain, *(repr(outcome(problem.reference, x)) for x in PROBES[domain])]


def program(expression: str) -> str:
    """The expression as a program that defines the function."""
    return f"def {FUNCTION}(x):\n    return {expression}\n"


def outcome(expression: str, x: Any) -> Any:
    """The value of an expression, or the message of its fault in a tuple."""
    try:
        return evaluate(read(expression), x)
    except Fault as fault:
        return fault.args


@functools.lru_cache(maxsize=8192)
def build(sizes: Sizes, seed: int) -> Problem:
    """The problem of a seed.

    Raises: RecipeError, if no problem is found with enough mutants and enough different examples.
    """
    draw = random.Random(derive(seed, "problem"))
    for _ in range(TRIES):
        domain = draw.choice(sizes.domains)
        chain = sizes.vocabulary.draw(domain, draw.randint(*sizes.depth), draw)
        reference = written(chain)
        pool = [*dict.fromkeys(_key(_input(domain, sizes.largest, draw, far=True)) for _ in range(POOL))]
        inputs = [_value(key) for key in pool]
        wants = [outcome(reference, x) for x in inputs]
        if any(isinstance(want, tuple) for want in wants) or wants == inputs:
            continue
        wrong = _wrong_ones(sizes, chain, inputs, wants, draw)
        seen = _seen(domain, sizes, draw)
        if len(wrong) < sizes.mutants or len(seen) < sizes.examples:
            continue
        hidden = [Test(x=x, want=want) for x, want in zip(inputs, wants, strict=True)]
        visible = [Test(x=x, want=outcome(reference, x)) for x in seen]
        if any(isinstance(test.want, tuple) for test in visible):
            continue
        return Problem(
            chain=chain,
            reference=reference,
            mutants=tuple(wrong),
            visible=tuple(_spoiled(visible, hidden, tuple(wrong), sizes, draw)),
            hidden=tuple(_telling(hidden, list(wrong.values()), sizes.hidden)),
        )
    raise RecipeError(
        where="environment: code",
        what=f"no problem with {sizes.mutants} mutants and {sizes.examples} examples was found.",
        remedy="Raise `operators`, `constants` or `largest`, or lower `mutants` or `examples`.",
    )


def _wrong_ones(
    sizes: Sizes, chain: Chain, inputs: Sequence[Any], wants: list[Any], draw: random.Random
) -> dict[str, list[Any]]:
    """Mutants that give another value than the reference on at least one input, and their values."""
    found: dict[str, list[Any]] = {}
    for mutant in sizes.vocabulary.mutants(chain, draw):
        text = written(mutant)
        gives = [outcome(text, x) for x in inputs]
        if gives != wants:
            found[text] = gives
        if len(found) == sizes.mutants:
            break
    return found


def _telling(tests: Sequence[Test], wrong: Sequence[Sequence[Any]], count: int) -> list[Test]:
    """`count` of the tests, or more, so that each wrong solution fails at least one of them."""
    chosen: list[int] = []
    for gives in wrong:
        differs = [place for place, test in enumerate(tests) if gives[place] != test.want]
        if not set(differs) & set(chosen):
            chosen.append(differs[0])
    chosen += [place for place in range(len(tests)) if place not in chosen]
    fewest = max(count, len(wrong))
    return [tests[place] for place in chosen[:fewest]]


def _spoiled(
    visible: Sequence[Test], more: Sequence[Test], wrong: Sequence[str], sizes: Sizes, draw: random.Random
) -> Sequence[Test]:
    """The visible tests, of which some are made trivial and some wrong."""
    if not sizes.wrong + sizes.trivial:
        return visible

    def passing(test: Test) -> int:
        return sum(outcome(text, test.x) == test.want for text in wrong)

    easiest = max([*visible, *more], key=passing)
    found = []
    for test in visible:
        fate = draw.random()
        others = [value for text in wrong if (value := outcome(text, test.x)) != test.want]
        others = [value for value in others if not isinstance(value, tuple)]
        if fate < sizes.wrong and others:
            test = replace(test, want=draw.choice(others), kind="wrong")
        elif sizes.wrong <= fate < sizes.wrong + sizes.trivial:
            test = replace(easiest, kind="trivial")
        found.append(test)
    return found


# ---- inputs -----------------------------------------------------------------------------------------------
def _seen(domain: Domain, sizes: Sizes, draw: random.Random) -> list[Any]:
    """Different inputs for the examples; numbers in ascending order."""
    if domain == "number":
        numbers = range(1, sizes.largest + 1)
        return sorted(draw.sample(numbers, min(sizes.examples, len(numbers))))
    keys: dict[Any, None] = {}
    for _ in range(TRIES):
        keys[_key(_input(domain, sizes.largest, draw, far=False))] = None
        if len(keys) == sizes.examples:
            break
    return [_value(key) for key in keys]


def _input(domain: Domain, largest: int, draw: random.Random, *, far: bool) -> Any:
    """An input. `far` allows larger and negative numbers and longer sequences than the examples have."""
    if domain == "number":
        return draw.randint(-2 * largest, 4 * largest) if far else draw.randint(1, largest)
    length = draw.randint(3, 6 if far else 4)
    if domain == "string":
        return "".join(draw.choice("abcdefghij") for _ in range(length))
    return [draw.randint(1, largest) for _ in range(length)]


def _key(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def _value(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key
