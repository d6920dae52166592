"""Aggregation: from what several have said to one answer. Pure functions over texts; None is what means nothing.

An answer that means nothing is never merged with another, wins no vote and counts among those who do not agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from palaestra.errors import InvalidData

Answer = str | None
How = Literal["vote", "last", "concat"]


def last(outputs: Sequence[Answer]) -> Answer:
    """What was said last.

    >>> last(["7", "8"])
    '8'
    """
    return outputs[-1] if outputs else None


def concat(outputs: Sequence[Answer], *, separator: str = "\n") -> Answer:
    """All that means something, in order; None if nothing does.

    >>> concat(["a", None, "b"], separator=" ")
    'a b'
    """
    return separator.join(text for text in outputs if text is not None) or None


def vote(outputs: Sequence[Answer]) -> Answer:
    """What was said most often; of several such, what was said first.

    >>> vote(["7", "8", "8", "7"]), vote([None, None, "3"])
    ('7', '3')
    """
    return weighted_vote(outputs, [1.0] * len(outputs))


def weighted_vote(outputs: Sequence[Answer], weights: Sequence[float]) -> Answer:
    """The answer whose speakers weigh most together; of several such, what was said first.

    Raises: InvalidData, unless there is one finite weight ≥ 0 for each output.

    >>> weighted_vote(["7", "8", "8"], [3, 1, 1])
    '7'
    """
    if len(weights) != len(outputs) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise InvalidData(
            where="aggregate: weighted_vote",
            what=f"{len(outputs)} outputs and the weights {list(weights)}.",
            remedy="Give one weight for each output, none of them negative.",
        )
    pairs = list(zip(outputs, weights, strict=True))
    said = dict.fromkeys(text for text in outputs if text is not None)  # in the order of who said it first
    weight_of = {text: math.fsum(weight for other, weight in pairs if other == text) for text in said}
    return max(weight_of, key=weight_of.__getitem__) if weight_of else None


def agreement(outputs: Sequence[Answer]) -> float:
    """The share of all outputs that the winner of a vote has.

    >>> agreement(["7", "7", None, "8"])
    0.5
    """
    winner = vote(outputs)
    return 0.0 if winner is None else sum(text == winner for text in outputs) / len(outputs)


def quorum(outputs: Sequence[Answer], *, share: float) -> Answer:
    """The answer that at least this share of all outputs gives, if there is one; a share of 1 asks for consensus.

    >>> quorum(["7", "7", "8"], share=0.6), quorum(["7", "7", "8"], share=1.0)
    ('7', None)
    """
    return vote(outputs) if agreement(outputs) >= share else None
