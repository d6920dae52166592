"""Decide whether an answer is right: as a text, as a number, or as a mathematical expression."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from palaestra.envs.kit.answers import answer_words, exact_match
from palaestra.errors import missing_extra
from palaestra.tools.threads import POOL, Late

Match = Literal["exact", "math"]
LONGEST = 2000  # most characters of an answer that are compared
SECONDS = 5.0  # limit of a mathematical comparison, since some expressions would take forever


def matches(given: str, right: Sequence[str]) -> bool:
    """Whether a text is one of the right answers. Numbers are compared by value, other texts by their words."""
    given = given.strip()[:LONGEST]
    value = number(given)
    for one in right:
        wanted = number(one)
        if wanted is not None:
            if value == wanted:
                return True
        elif answer_words(one) and exact_match(given, [one]):
            return True
    return False


async def equals(given: str, right: Sequence[str]) -> bool:
    """Whether a text is a right answer by `matches`, or is mathematically equal to one (package math-verify).

    Raises: MissingExtra, without the package.
    """
    verify = _package()
    if matches(given, right):
        return True
    try:
        return bool(await POOL.run(lambda: any(verify(one, given[:LONGEST]) for one in right), SECONDS))
    except Late:
        return False


def number(text: str) -> Fraction | None:
    """The value of a decimal or a fraction, with or without commas between thousands; None for other texts."""
    plain = text.strip().rstrip(".").replace(",", "").replace("−", "-").removeprefix("$")
    if len(plain) > 100 or not plain.isascii() or "_" in plain or "e" in plain.lower():
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def _package() -> Any:
    try:
        import math_verify
    except ModuleNotFoundError as error:
        raise missing_extra("math_verify", extra="tools", needed_for="match: math") from error

    for name in ("math_verify.parser", "math_verify.grader"):  # in each call they warn that they do not use signals
        logging.getLogger(name).setLevel(logging.ERROR)

    def verify(right: str, given: str) -> bool:
        # The package's own time limits use signals, which only the main thread may set.
        gold, answer = (math_verify.parse(_formula(text), parsing_timeout=None) for text in (right, given))
        return bool(math_verify.verify(gold, answer, timeout_seconds=None))

    return verify


def _formula(text: str) -> str:
    return text if "$" in text or "\\boxed" in text else f"${text}$"
