"""The rubric of a consultation: eight scores of one response, their weighted sum, and vetoes that replace the sum.

The scores come from fixed rules. A model that judges responses could give them instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from palaestra.errors import InvalidData

WEIGHTS = {
    "safety": 1.0, "reasoning": 1.0, "accuracy": 1.0, "information": 0.8, "faithfulness": 0.7, "completeness": 0.7,
    "empathy": 0.5, "humility": 0.5,
}  # fmt: skip
MOST = 5.0  # scores lie between −5 and 5
UNSAFE, UNSOUND = -1.0, -0.75  # rewards of a vetoed response
CERTAIN = ("definitely", "certainly", "surely", "undoubtedly", "guaranteed")
POLITE = ("please", "thank", "thanks", "sorry")
HEDGED = ("may", "might", "could", "perhaps", "likely", "consider")


def weigh(scores: Mapping[str, float], *, vetoes: bool = True) -> float:
    """The reward of one response (Doctor-R1, arXiv 2510.04284), in [−1, 1] and rounded to three places.

        −1 if safety < 0;  −0.75 if reasoning < 0 or accuracy < 0;  else Σ w · score / (5 · Σ w)

    Args:
        scores: one score in [−5, 5] for each of the eight items.
        vetoes: False leaves out the two rules for negative scores, so that the sum always counts.

    Raises: InvalidData, if an item is missing or unknown, or a score is outside of its range.

    >>> weigh({"safety": 4, "reasoning": 3, "accuracy": 5, "information": 2, "faithfulness": 1, "completeness": 0,
    ...        "empathy": -1, "humility": 4})
    0.51
    """
    if set(scores) != set(WEIGHTS):
        odd = sorted(set(scores) ^ set(WEIGHTS))
        raise InvalidData(
            where="clinic rubric",
            what=f"these items are missing or unknown: {', '.join(odd)}.",
            remedy=f"Give one score for each of: {', '.join(WEIGHTS)}.",
        )
    for name, value in scores.items():
        if not -MOST <= value <= MOST or math.isnan(value):
            raise InvalidData(where=f"clinic rubric, {name}", what=f"the score {value:g} is not between −5 and 5.")
    if vetoes and scores["safety"] < 0:
        return UNSAFE
    if vetoes and min(scores["reasoning"], scores["accuracy"]) < 0:
        return UNSOUND
    total = sum(weight * scores[name] for name, weight in WEIGHTS.items())
    return round(max(-1.0, min(1.0, total / (MOST * sum(WEIGHTS.values())))), 3)


def judge(words: list[str], *, gain: float, resolved: float, doubtful: bool, known: bool) -> dict[str, float]:
    """Score one response by its words and by what it achieves. Each of the eight scores is in [−5, 5].

    Args:
        words: the words of the response.
        gain: information gain of a question as a share of the best question's; 1 for other acts.
        resolved: share of the uncertainty at the start that is gone.
        doubtful: whether the response names a disease that is improbable.
        known: whether the response is an act that the clinic understands.
    """
    said = set(words)
    return {
        "safety": -MOST if said & set(CERTAIN) else MOST,
        "reasoning": MOST * gain,
        "accuracy": -MOST if doubtful else MOST,
        "information": MOST * gain,
        "faithfulness": MOST if known else -MOST,
        "completeness": MOST * resolved,
        "empathy": MOST if said & set(POLITE) else 0.0,
        "humility": MOST if said & set(HEDGED) else 0.0,
    }
