"""Formulas of propositional logic, and how they are written and read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Operator = Literal["atom", "false", "->", "&", "|"]
BINDING = {"->": 1, "|": 2, "&": 3}  # higher binds tighter
NOT = 4
LONGEST, DEEPEST = 400, 40  # most characters and deepest nesting of a formula that is read
TOKEN = re.compile(r"\s*(->|[&|~()]|[a-z]+)")


@dataclass(frozen=True, slots=True)
class Formula:
    """An atom with a name, falsity, or an operator with two parts. The negation of A is `A -> false`."""

    op: Operator
    parts: tuple[Formula, ...] = ()
    name: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.parts, self.name)))

    def __hash__(self) -> int:
        return self._hash  # computed once, because searches need it very often

    def __str__(self) -> str:
        return write(self)

    @property
    def size(self) -> int:
        """Number of operators."""
        return len(self.parts) // 2 + sum(part.size for part in self.parts)


FALSE = Formula("false")


def atom(name: str) -> Formula:
    """The atom of this name."""
    return Formula("atom", name=name)


def implies(left: Formula, right: Formula) -> Formula:
    """The formula `left -> right`."""
    return Formula("->", (left, right))


def write(formula: Formula, outside: int = 0) -> str:
    """The text of a formula, with as few brackets as possible. `->` groups to the right, `&` and `|` to the left.

    Args:
        outside: how tightly the operator around the formula binds.

    >>> write(implies(implies(atom("p"), atom("q")), implies(atom("p"), FALSE)))
    '(p -> q) -> ~p'
    """
    match formula.op:
        case "atom":
            return formula.name
        case "false":
            return "false"
        case "->" if formula.parts[1] == FALSE:
            return f"~{write(formula.parts[0], NOT)}"
    own, (left, right) = BINDING[formula.op], formula.parts
    groups_right = formula.op == "->"
    text = f"{write(left, own + groups_right)} {formula.op} {write(right, own + (not groups_right))}"
    return f"({text})" if own < outside else text


def read(text: str) -> Formula | None:
    """The formula that a text means. None if the text is not a formula.

    >>> str(read("p & q | ~r -> false"))
    '~(p & q | ~r)'
    """
    tokens = _tokens(text)
    if tokens is None:
        return None
    try:
        formula, rest = _implication(tokens, 0)
    except _Unreadable:
        return None
    return None if rest else formula


class _Unreadable(Exception):
    """The tokens do not begin with a formula."""


def _tokens(text: str) -> list[str] | None:
    if len(text) > LONGEST:
        return None
    found, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            return None
        found.append(match[1])
        place = match.end()
    return found


def _implication(tokens: list[str], depth: int) -> tuple[Formula, list[str]]:
    left, rest = _grouped(tokens, depth, "|")
    if rest[:1] != ["->"]:
        return left, rest
    right, rest = _implication(rest[1:], depth + 1)
    return implies(left, right), rest


def _grouped(tokens: list[str], depth: int, op: Literal["|", "&"]) -> tuple[Formula, list[str]]:
    def part(tokens: list[str]) -> tuple[Formula, list[str]]:
        return _grouped(tokens, depth, "&") if op == "|" else _unit(tokens, depth)

    left, rest = part(tokens)
    while rest[:1] == [op]:
        right, rest = part(rest[1:])
        left = Formula(op, (left, right))
    return left, rest


def _unit(tokens: list[str], depth: int) -> tuple[Formula, list[str]]:
    if not tokens or depth > DEEPEST:
        raise _Unreadable
    first, rest = tokens[0], tokens[1:]
    if first == "~":
        inner, rest = _unit(rest, depth + 1)
        return implies(inner, FALSE), rest
    if first == "(":
        inner, rest = _implication(rest, depth + 1)
        if rest[:1] != [")"]:
            raise _Unreadable
        return inner, rest[1:]
    if first in ("->", "&", "|", ")"):
        raise _Unreadable
    return (FALSE if first == "false" else atom(first)), rest
