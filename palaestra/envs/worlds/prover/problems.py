"""Problems: provable formulas drawn from a seed, plain or composed of others.

Knows formulas and how long their shortest proofs are. Knows nothing of tasks or texts.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from palaestra.data import derive
from palaestra.envs.worlds.prover.formulas import FALSE, Formula, atom, implies
from palaestra.envs.worlds.prover.search import provable, shortest
from palaestra.envs.worlds.prover.tactics import Goal
from palaestra.errors import RecipeError

ATOMS = ("p", "q", "r", "s")
SHARES = {"->": 0.5, "&": 0.2, "|": 0.2, "~": 0.1}
TRIES = 4000


def draw_formula(size: int, atoms: int, generator: np.random.Generator) -> Formula:
    """A formula with `size` operators over the first `atoms` atoms, implications most often."""
    if size == 0:
        return atom(ATOMS[int(generator.integers(atoms))])
    op = str(generator.choice(list(SHARES), p=list(SHARES.values())))
    if op == "~":
        return implies(draw_formula(size - 1, atoms, generator), FALSE)
    left = int(generator.integers(size))
    parts = (draw_formula(left, atoms, generator), draw_formula(size - 1 - left, atoms, generator))
    return Formula(op, parts)  # type: ignore[arg-type]


def instance(formula: Formula, name: str, by: Formula) -> Formula:
    """The formula with every atom of a name replaced: what was provable still is."""
    if formula.op == "atom":
        return by if formula.name == name else formula
    return replace(formula, parts=tuple(instance(part, name, by) for part in formula.parts))


@functools.lru_cache(maxsize=8192)
def problem(
    size: tuple[int, int], atoms: int, steps: tuple[int, int], composed: bool, seed: int
) -> tuple[Formula, int]:
    """A provable formula whose shortest proof has a number of tactics in `steps`, and that number.

    The number is drawn first, evenly; then formulas are drawn until one has it, for a while; then until one is inside.

    Args:
        size: fewest and most operators. composed: of two theorems, one inside an instance of the other.

    Raises: RecipeError, if none of many formulas is such.
    """
    generator = np.random.default_rng(derive(seed, "problem"))
    wanted = int(generator.integers(steps[0], steps[1] + 1))
    for number in range(TRIES):
        formula = _composed(size, atoms, generator) if composed else _drawn(size, atoms, generator)
        proof = shortest(Goal((), formula), steps[1])
        patient = number < TRIES // 4
        if proof is not None and (len(proof) == wanted or (not patient and len(proof) >= steps[0])):
            return formula, len(proof)
    raise RecipeError(
        where="environment: prover",
        what=f"no theorem with {size[0]}–{size[1]} operators and a shortest proof of {steps[0]}–{steps[1]} was found.",
        remedy="A proof of n tactics needs about n operators: raise `size`, or lower `steps`.",
    )


def _drawn(size: tuple[int, int], atoms: int, generator: np.random.Generator) -> Formula:
    return draw_formula(int(generator.integers(size[0], size[1] + 1)), atoms, generator)


def _composed(size: tuple[int, int], atoms: int, generator: np.random.Generator) -> Formula:
    """A theorem whose atom is replaced by something, under another theorem: A & B, or A -> B."""
    first, second = (_theorem(size, atoms, generator) for _ in range(2))
    small = draw_formula(1, atoms, generator)
    first = instance(first, ATOMS[int(generator.integers(atoms))], small)
    return Formula("&", (first, second)) if generator.random() < 0.5 else implies(implies(first, small), small)


def _theorem(size: tuple[int, int], atoms: int, generator: np.random.Generator) -> Formula:
    while True:
        formula = _drawn((max(1, size[0] // 2), max(2, size[1] // 2)), atoms, generator)
        if provable(frozenset(), formula):
            return formula
