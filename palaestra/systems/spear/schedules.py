"""Cosine schedules: a weight that rises from 0 to 1, or falls from 1 to 0, from the first iteration to a horizon."""

from __future__ import annotations

import math

from palaestra.errors import InvalidData


def rise(step: int, horizon: int) -> float:
    """(1 − cos(π · step / horizon)) / 2: from 0 to 1 along half a cosine, then 1.

    Args:
        step: the iteration, from 0.
        horizon: > 0, the iteration from which it is 1.

    Raises: InvalidData, for a horizon that is not positive or a negative step.

    >>> [round(rise(step, 200), 4) for step in (0, 50, 100, 200, 250)]
    [0.0, 0.1464, 0.5, 1.0, 1.0]
    """
    if horizon <= 0 or step < 0:
        raise InvalidData(
            where="schedule",
            what=f"the iteration is {step} and the horizon {horizon}.",
            remedy="Give a horizon of at least 1, and iterations from 0.",
        )
    return (1 - math.cos(math.pi * step / horizon)) / 2 if step <= horizon else 1.0


def fall(step: int, horizon: int) -> float:
    """1 − `rise`: from 1 to 0 along half a cosine, then 0.

    >>> [round(fall(step, 200), 4) for step in (0, 50, 100, 200, 250)]
    [1.0, 0.8536, 0.5, 0.0, 0.0]
    """
    return 1.0 - rise(step, horizon)
