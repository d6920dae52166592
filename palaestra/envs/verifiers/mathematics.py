"""A verifier that compares formulas and numbers by their value, with the package math-verify."""

from __future__ import annotations

import importlib
import logging
import threading
from typing import Any

from palaestra.envs.verifiers.answers import right_answers
from palaestra.errors import missing_extra
from palaestra.registry import register

SECONDS = 5  # for reading or comparing, where math-verify can measure it: in the main thread


@register("verifier", "math", extra="tools", modules=("math_verify",))
def math(completion: str, answer: Any) -> float | None:
    """1 if the formula or number in the reply has the value of a right answer, else 0.

    A `\\boxed{…}` counts first, then the last formula. None, if no right answer can be read as mathematics.

    Args:
        completion: the reply.
        answer: the right answer, or a list of right answers, with or without dollar signs.

    Raises: MissingExtra, without math-verify.

    >>> math(r"so it is \\boxed{0.5}", r"\\frac{1}{2}")
    1.0
    """
    try:
        package = importlib.import_module("math_verify")
    except ImportError as error:
        raise missing_extra("math_verify", extra="tools", needed_for="verifier math") from error
    for name in ("math_verify.parser", "math_verify.grader"):  # they warn in each call that they use no signals
        logging.getLogger(name).setLevel(logging.ERROR)
    limit = SECONDS if threading.current_thread() is threading.main_thread() else None
    wanted = [package.parse(formula(one), parsing_timeout=limit) for one in right_answers(answer)]
    if not any(wanted):
        return None
    said = package.parse(completion, parsing_timeout=limit)
    return float(any(one and package.verify(one, said, timeout_seconds=limit) for one in wanted))


def formula(text: str) -> str:
    """A text as a formula: with dollar signs, unless it has some or a box."""
    return text if "$" in text or "\\boxed" in text else f"${text}$"
