"""A verifier that compares formulas and numbers by their value, with the package math-verify."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from palaestra.envs.verifiers.answers import right_answers
from palaestra.errors import PalaestraError, missing_extra
from palaestra.registry import register
from palaestra.tools.sandbox.workers import Died, Worker, Workers

SECONDS = 5.0  # for one reply
BEGIN_S = 120.0  # for the start of the process, which imports SymPy
LONGEST = 100_000  # characters of a reply, from its end
PLACE = "verifier math"
WORKERS = Workers(("-P", str(Path(__file__).with_name("mathematics_inside.py"))), where=PLACE)


@register("verifier", "math", extra="tools", modules=("math_verify",))
def math(completion: str, answer: Any) -> float | None:
    """1 if the formula or number in the reply has the value of a right answer, else 0.

    A `\\boxed{…}` counts first, then the last formula. None, if no right answer can be read as mathematics.

    A reply that takes longer than 5 seconds, or 2 GB, gets 0. It is computed in a process of its own, so that it stops
    nothing else.

    Args:
        completion: the reply.
        answer: the right answer, or a list of right answers, with or without dollar signs.

    Raises: MissingExtra, without math-verify. PalaestraError, if the package fails.

    >>> math(r"so it is \\boxed{0.5}", r"\\frac{1}{2}")
    1.0
    """
    if importlib.util.find_spec("math_verify") is None:
        raise missing_extra("math_verify", extra="tools", needed_for=PLACE)
    worker = _ready()
    answers = [formula(one) for one in right_answers(answer)]
    try:
        said = worker.ask({"completion": completion[-LONGEST:], "answers": answers}, wait_s=SECONDS)
    except Died:
        return 0.0
    WORKERS.give(worker)
    if "fault" in said:
        raise PalaestraError(where=PLACE, what=f"math-verify failed: {said['fault']}")
    return None if said["score"] is None else float(said["score"])


def _ready() -> Worker:
    """A process that has imported the package. Raises: PalaestraError."""
    worker = WORKERS.take("ready")
    if worker.holds is None:
        try:
            worker.ask({"path": sys.path}, wait_s=BEGIN_S)
        except Died as died:
            why = f"did not start in {BEGIN_S:g} s" if died.late else "died at its start"
            raise PalaestraError(
                where=PLACE, what=f"the process that compares formulas {why}.", remedy="Try `import math_verify`."
            ) from died
        worker.holds = "ready"
    return worker


def formula(text: str) -> str:
    """A text as a formula: with dollar signs, unless it has some or a box."""
    return text if "$" in text or "\\boxed" in text else f"${text}$"
