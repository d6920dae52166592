"""The checker: what each tactic does to the first open goal, or why it cannot be used. Sound for intuitionistic logic.

Knows goals and formulas. Knows nothing of which tactic is good.
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
MOST_GOALS, MOST_NAMES = 32, 64  # a proof that needs more is none of ours


BY_SHOWN = {"->": ("intro",), "&": ("split",), "|": ("left", "right")}


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be shown from what: named hypotheses, in the order in which they came, and a formula."""

    given: tuple[tuple[str, Formula], ...]
    show: Formula

    @property
    def names(self) -> dict[str, Formula]:
        """Hypothesis by name; a newer one hides an older one of its name."""
        return dict(self.given)

    def fresh(self, count: int = 1) -> list[str]:
        """The next names that are not taken: a, b, …, z, a1, b1, …"""
        taken = {name for name, _ in self.given}
        rounds = range(MOST_NAMES)
        names = (f"{letter}{number or ''}" for number in rounds for letter in string.ascii_lowercase)
        return list(itertools.islice((name for name in names if name not in taken), count))

    def having(self, *new: tuple[str, Formula], show: Formula | None = None) -> Goal:
        """With further hypotheses, and another formula to show."""
        hidden = {name for name, _ in new}
        kept = tuple(pair for pair in self.given if pair[0] not in hidden)
        return Goal((*kept, *new), self.show if show is None else show)

    def without(self, name: str) -> Goal:
        """Without a hypothesis."""
        return Goal(tuple(pair for pair in self.given if pair[0] != name), self.show)


class Refused(Exception):
    """The tactic cannot be used here; the text says why."""


def use(goals: Sequence[Goal], text: str) -> tuple[Goal, ...]:
    """The open goals after a tactic on the first of them; none left: the theorem is proved.

        intro [x]          show A -> B: have x : A, show B
        exact h            h is what is to be shown
        apply h            h : A -> … -> G with G to be shown: show A, …
        split              show A & B: show A, show B
        left, right        show A | B: show A, or show B
        cases h [x y]      h : A & B: have x : A, y : B; h : A | B: twice, once with each; h : false: done
        exfalso            show false instead
        have x : F         show F, then go on with x : F

    Raises: Refused.
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
    """Every tactic that can be used on a goal, `have` and names of one's own left out."""
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
