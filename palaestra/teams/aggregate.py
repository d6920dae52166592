"""Make one answer from the answers of several agents. Pure functions over texts; None stands for no valid answer.

None is never merged with an answer, wins no vote, and counts as a disagreement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from palaestra.errors import InvalidData

Answer = str | None
How = Literal["vote", "last", "concat"]


def last(outputs: Sequence[Answer]) -> Answer:
    """The last answer.

    >>> last(["7", "8"])
    '8'
    """
    return outputs[-1] if outputs else None


def concat(outputs: Sequence[Answer], *, separator: str = "\n") -> Answer:
    """All valid answers in order, as one text. None if there is none.

    >>> concat(["a", None, "b"], separator=" ")
    'a b'
    """
    return separator.join(text for text in outputs if text is not None) or None


def vote(outputs: Sequence[Answer]) -> Answer:
    """The most frequent answer. In a tie, the one that was given first.

    >>> vote(["7", "8", "8", "7"]), vote([None, None, "3"])
    ('7', '3')
    """
    return weighted_vote(outputs, [1.0] * len(outputs))


def weighted_vote(outputs: Sequence[Answer], weights: Sequence[float]) -> Answer:
    """The answer with the largest sum of weights. In a tie, the one that was given first.

    Raises: InvalidData, unless there is one finite weight ≥ 0 for each output.

    >>> weighted_vote(["7", "8", "8"], [3, 1, 1])
    '7'
    """
    if len(weights) != len(outputs) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise InvalidData(
            where="aggregate: weighted_vote",
            what=f"there are {len(outputs)} outputs, and the weights are {list(weights)}.",
            remedy="Give one weight for each output, finite and not negative.",
        )
    pairs = list(zip(outputs, weights, strict=True))
    said = dict.fromkeys(text for text in outputs if text is not None)  # in the order in which they were given first
    weight_of = {text: math.fsum(weight for other, weight in pairs if other == text) for text in said}
    return max(weight_of, key=weight_of.__getitem__) if weight_of else None


def agreement(outputs: Sequence[Answer]) -> float:
    """The share of the most frequent answer among all outputs.

    >>> agreement(["7", "7", None, "8"])
    0.5
    """
    winner = vote(outputs)
    return 0.0 if winner is None else sum(text == winner for text in outputs) / len(outputs)


def quorum(outputs: Sequence[Answer], *, share: float) -> Answer:
    """The answer that at least this share of all outputs gives, else None. A share of 1 asks for consensus.

    >>> quorum(["7", "7", "8"], share=0.6), quorum(["7", "7", "8"], share=1.0)
    ('7', None)
    """
    return vote(outputs) if agreement(outputs) >= share else None
