"""Theorems of the prover: provable formulas drawn from a seed, plain or composed of smaller theorems."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from itertools import accumulate

from palaestra.data import derive
from palaestra.data.task import content_digest
from palaestra.envs.kit.panels import part_of
from palaestra.envs.worlds.prover.formulas import FALSE, Formula, atom, implies
from palaestra.envs.worlds.prover.search import provable, shortest
from palaestra.envs.worlds.prover.tactics import Goal
from palaestra.errors import RecipeError

ATOMS = ("p", "q", "r", "s")
SHARES = {"->": 0.5, "&": 0.2, "|": 0.2, "~": 0.1}
OPERATORS, BELOW = tuple(SHARES), tuple(accumulate(SHARES.values()))
TRIES = 8000


def draw_formula(size: int, atoms: int, draw: random.Random) -> Formula:
    """A random formula with `size` operators over the first `atoms` atoms. `SHARES`: probabilities of operators."""
    if size == 0:
        return atom(ATOMS[draw.randrange(atoms)])
    op = draw.choices(OPERATORS, cum_weights=BELOW)[0]
    if op == "~":
        return implies(draw_formula(size - 1, atoms, draw), FALSE)
    left = draw.randrange(size)
    parts = (draw_formula(left, atoms, draw), draw_formula(size - 1 - left, atoms, draw))
    return Formula(op, parts)  # type: ignore[arg-type]


def instance(formula: Formula, name: str, by: Formula) -> Formula:
    """The formula with every atom of this name replaced by `by`. A provable formula stays provable."""
    if formula.op == "atom":
        return by if formula.name == name else formula
    return replace(formula, parts=tuple(instance(part, name, by) for part in formula.parts))


@functools.lru_cache(maxsize=8192)
def problem(
    size: tuple[int, int], atoms: int, steps: tuple[int, int], composed: bool, seed: int
) -> tuple[Formula, int]:
    """The theorem of a seed, and the number of tactics of its shortest proof, which lies in `steps`.

    Even seeds are those of training: their theorems belong to the part "train". Odd seeds have all other theorems.

    A wanted number of tactics is drawn evenly. The first quarter of the tries looks for a theorem with this number; the
    other tries accept every number in `steps`.

    Args:
        size: fewest and most operators. composed: whether the theorem is built from smaller ones.

    Raises: RecipeError, if no try finds such a theorem.
    """
    draw = random.Random(derive(seed, "problem"))
    wanted = draw.randint(*steps)
    for number in range(TRIES):
        formula = _composed(size, atoms, draw) if composed else _drawn(size, atoms, draw)
        if (part_of(content_digest("prover", str(formula))) == "train") == bool(seed % 2):
            continue
        patient = number < TRIES // 4
        length = _length(formula, wanted if patient else steps[1])
        if length == wanted or (length is not None and not patient and length >= steps[0]):
            return formula, length
    raise RecipeError(
        where="environment: prover",
        what=f"none of {TRIES:,} random formulas with `size` {size[0]} to {size[1]} has a shortest proof of {steps[0]} "
        f"to {steps[1]} tactics.",
        remedy="A proof of n tactics needs about n operators: raise `size`, or lower `steps`.",
    )


@functools.lru_cache(maxsize=100_000)
def _length(formula: Formula, most: int) -> int | None:
    """Number of tactics of a shortest proof. None if it takes more than `most`."""
    proof = shortest(Goal((), formula), most)
    return None if proof is None else len(proof)


def _drawn(size: tuple[int, int], atoms: int, draw: random.Random) -> Formula:
    return draw_formula(draw.randint(*size), atoms, draw)


def _composed(size: tuple[int, int], atoms: int, draw: random.Random) -> Formula:
    """`A & B` or `(A -> c) -> c`. A is a theorem in which the formula c replaces an atom, and B is another theorem."""
    first, second = (_theorem(size, atoms, draw) for _ in range(2))
    small = draw_formula(1, atoms, draw)
    first = instance(first, ATOMS[draw.randrange(atoms)], small)
    return Formula("&", (first, second)) if draw.random() < 0.5 else implies(implies(first, small), small)


def _theorem(size: tuple[int, int], atoms: int, draw: random.Random) -> Formula:
    while True:
        formula = _drawn((max(1, size[0] // 2), max(2, size[1] // 2)), atoms, draw)
        if provable(frozenset(), formula):
            return formula
