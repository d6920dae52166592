"""Proof search for the prover: whether a formula can be proved, and its shortest proof by tactics."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from palaestra.envs.worlds.prover.formulas import FALSE, Formula, implies
from palaestra.envs.worlds.prover.tactics import Goal, choices, use

Given = frozenset[Formula]
MANY = 10**6  # more tactics than any search tries


# ---- decision ---------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=200_000)
def provable(given: Given, show: Formula) -> bool:
    """Whether `show` follows from `given` in intuitionistic logic.

    Uses a sequent calculus without contraction (Dyckhoff 1992). The premises of each rule are smaller than its
    conclusion, by the measure of that paper, so the search always ends. Invertible rules are used first.
    """
    if show in given or FALSE in given:
        return True
    for one in given:
        simpler = _simpler(one, given)
        if simpler is not None:
            return all(provable(premise, show) for premise in simpler)
    if show.op == "->":
        return provable(given | {show.parts[0]}, show.parts[1])
    if show.op == "&":
        return all(provable(given, part) for part in show.parts)
    if show.op == "|" and any(provable(given, part) for part in show.parts):
        return True
    return any(_by_nested(one, given, show) for one in given)


def _simpler(one: Formula, given: Given) -> Iterable[Given] | None:
    """The premises of an invertible rule for the hypothesis `one`, or None if it has no such rule."""
    rest = given - {one}
    match one.op:
        case "&":
            return [rest | set(one.parts)]
        case "|":
            return [rest | {part} for part in one.parts]
        case "->":
            left, right = one.parts
            if left in given:
                return [rest | {right}]
            if left.op == "&":
                return [rest | {implies(left.parts[0], implies(left.parts[1], right))}]
            if left.op == "|":
                return [rest | {implies(part, right) for part in left.parts}]
            if left == FALSE:
                return [rest]
    return None


def _by_nested(one: Formula, given: Given, show: Formula) -> bool:
    """Whether a hypothesis (A -> B) -> C proves `show`: A -> B must follow from B -> C, and `show` from C."""
    if one.op != "->" or one.parts[0].op != "->":
        return False
    (left, middle), right, rest = one.parts[0].parts, one.parts[1], given - {one}
    return provable(rest | {implies(middle, right)}, implies(left, middle)) and provable(rest | {right}, show)


# ---- shortest proofs --------------------------------------------------------------------------------------
def shortest(goal: Goal, most: int) -> list[str] | None:
    """A shortest proof of a goal, without the tactic `have`. None if it takes more than `most` tactics.

    Iterative deepening: all proofs of one tactic are tried, then those of two, and so on. The length of a proof counts
    the tactics of all goals that it opens. Of several shortest proofs, the first in the order of `choices` is returned.
    """
    if not provable(frozenset(goal.names.values()), goal.show):
        return None
    search = _Search()
    return next((found for budget in range(1, most + 1) if (found := search.within(goal, budget))), None)


class _Search:
    """Remembers, for hypotheses (whatever their names) and a formula, how many tactics were not enough to prove it."""

    def __init__(self) -> None:
        self._failed: dict[tuple[Given, Formula], int] = {}

    def within(self, goal: Goal, budget: int) -> list[str] | None:
        """A proof of at most `budget` tactics, or None."""
        place = frozenset(formula for _, formula in goal.given), goal.show
        if budget <= self._failed.get(place, 0):
            return None
        if budget > 1 and not provable(*place):  # no number of tactics is enough
            self._failed[place] = MANY
            return None
        for text in choices(goal):
            opened = use([goal], text)
            if len(opened) < budget or not opened:
                rest = self._all(opened, budget - 1)
                if rest is not None:
                    return [text, *rest]
        self._failed[place] = budget
        return None

    def _all(self, goals: tuple[Goal, ...], budget: int) -> list[str] | None:
        """Shortest proofs of all goals, one after another, with at most `budget` tactics together. None if too few."""
        if not goals:
            return []
        for own in range(1, budget - len(goals) + 2):
            first = self.within(goals[0], own)
            if first is not None:
                rest = self._all(goals[1:], budget - len(first))
                return None if rest is None else [*first, *rest]
        return None
