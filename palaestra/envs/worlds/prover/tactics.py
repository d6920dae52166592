"""The checker of the prover: applies a tactic to the first open goal, or tells why it cannot be used.

It is sound for intuitionistic logic.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.envs.worlds.prover.formulas import FALSE, Formula, read

NAME = re.compile(r"[a-z][a-z0-9]*")
UNREADABLE = "no such tactic"
MOST_GOALS, MOST_NAMES = 32, 64  # limits of a proof; shortest proofs of the drawn theorems stay below them
BY_SHOWN = {"->": ("intro",), "&": ("split",), "|": ("left", "right")}


@dataclass(frozen=True, slots=True)
class Goal:
    """A formula to prove, and the named hypotheses in the order in which they came."""

    given: tuple[tuple[str, Formula], ...]
    show: Formula

    @property
    def names(self) -> dict[str, Formula]:
        """The hypotheses by name. A newer one hides an older one of the same name."""
        return dict(self.given)

    def fresh(self, count: int = 1) -> list[str]:
        """The next free names, in the order a, b, …, z, a1, b1, …"""
        taken = {name for name, _ in self.given}
        rounds = range(MOST_NAMES)
        names = (f"{letter}{number or ''}" for number in rounds for letter in string.ascii_lowercase)
        return list(itertools.islice((name for name in names if name not in taken), count))

    def having(self, *new: tuple[str, Formula], show: Formula | None = None) -> Goal:
        """The goal with further hypotheses and, if `show` is given, another formula to prove."""
        hidden = {name for name, _ in new}
        kept = tuple(pair for pair in self.given if pair[0] not in hidden)
        return Goal((*kept, *new), self.show if show is None else show)

    def without(self, name: str) -> Goal:
        """The goal without this hypothesis."""
        return Goal(tuple(pair for pair in self.given if pair[0] != name), self.show)


class Refused(Exception):
    """A tactic cannot be used here. The message tells the agent why."""


def use(goals: Sequence[Goal], text: str) -> tuple[Goal, ...]:
    """The open goals after a tactic on the first of them. If none is left, the theorem is proved.

        intro [x]          to prove A -> B: add x : A, prove B
        exact h            h is the formula to prove: done
        apply h            h is A -> … -> G, and G is the formula to prove: prove A, …
        split              to prove A & B: prove A, prove B
        left, right        to prove A | B: prove A, or prove B
        cases h [x y]      h is A & B: add x : A, y : B; h is A | B: two goals, one with A, one with B; h is false: done
        exfalso            prove false instead
        have x : F         prove F, then go on with x : F

    Raises: Refused, if the tactic cannot be read or used.
    """
    goal, rest = goals[0], tuple(goals[1:])
    new = (*_open(goal, text), *rest)
    if len(new) > MOST_GOALS or any(len(one.given) > MOST_NAMES for one in new[:2]):
        raise Refused("too many goals or hypotheses")
    return new


def _open(goal: Goal, text: str) -> tuple[Goal, ...]:
    if text.startswith("have "):
        return _have(goal, text.removeprefix("have "))
    match text.split():
        case ["intro", *names] if len(names) <= 1:
            if goal.show.op != "->":
                raise Refused("intro needs an implication to show")
            return (goal.having((_named(goal, names, 1)[0], goal.show.parts[0]), show=goal.show.parts[1]),)
        case ["exact", name]:
            if _given(goal, name) != goal.show:
                raise Refused(f"{name} is not what is to be shown")
            return ()
        case ["apply", name]:
            return _apply(goal, name)
        case ["split"]:
            if goal.show.op != "&":
                raise Refused("split needs & to show")
            return tuple(Goal(goal.given, part) for part in goal.show.parts)
        case ["left" | "right" as side]:
            if goal.show.op != "|":
                raise Refused(f"{side} needs | to show")
            return (Goal(goal.given, goal.show.parts[side == "right"]),)
        case ["cases", name, *names] if len(names) <= 2:
            return _cases(goal, name, names)
        case ["exfalso"]:
            return (Goal(goal.given, FALSE),)
    raise Refused(UNREADABLE)


def _given(goal: Goal, name: str) -> Formula:
    if name not in goal.names:
        raise Refused(f"there is no {name}")
    return goal.names[name]


def _named(goal: Goal, names: Sequence[str], count: int) -> list[str]:
    if not all(NAME.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise Refused("names are small letters and digits, each another one")
    return [*names, *(name for name in goal.fresh(count + len(names)) if name not in names)][:count]


def _apply(goal: Goal, name: str) -> tuple[Goal, ...]:
    left, needed = _given(goal, name), []
    while left != goal.show:
        if left.op != "->":
            raise Refused(f"{name} does not end in what is to be shown")
        needed.append(left.parts[0])
        left = left.parts[1]
    return tuple(Goal(goal.given, formula) for formula in needed)


def _cases(goal: Goal, name: str, names: Sequence[str]) -> tuple[Goal, ...]:
    found = _given(goal, name)
    less = goal.without(name)
    match found.op:
        case "false":
            return ()
        case "&":
            first, second = _named(less, names, 2)
            return (less.having((first, found.parts[0]), (second, found.parts[1])),)
        case "|":
            chosen = _named(less, names, 2) if len(names) == 2 else _named(less, names, 1) * 2
            return tuple(less.having((own, part)) for own, part in zip(chosen, found.parts, strict=True))
    raise Refused(f"cases needs &, | or false, and {name} is none")


def _have(goal: Goal, text: str) -> tuple[Goal, ...]:
    name, colon, rest = text.partition(":")
    formula = read(rest) if colon else None
    if formula is None:
        raise Refused("write have x : formula, with ->, &, |, ~, false and brackets")
    own = _named(goal, name.split(), 1)[0]
    return Goal(goal.given, formula), goal.having((own, formula))


def choices(goal: Goal) -> list[str]:
    """The tactics that change a goal, without `have` and without names for new hypotheses. Empty in a dead end."""
    show = goal.show
    found = list(BY_SHOWN.get(show.op, ()))
    found += ["exfalso"] if show != FALSE else []
    for name, formula in goal.names.items():
        if formula == show:
            found.append(f"exact {name}")
        elif _ends_in(formula, show):
            found.append(f"apply {name}")
        if formula.op in ("&", "|", "false"):
            found.append(f"cases {name}")
    return found


def _ends_in(formula: Formula, show: Formula) -> bool:
    while formula.op == "->":
        formula = formula.parts[1]
        if formula == show:
            return True
    return False
