"""From several outputs to one, each rule pinned by a test of the same number.

1. Votes: most voices; ties go to who spoke first; what means nothing wins no vote and is merged with nothing.
2. Weights that are equal change nothing; weights that do not fit are refused.
3. A quorum is a share of all outputs, those that mean nothing too; a share of 1 is consensus.
4. Majorities of n independent voters, each right with probability p, are right as the binomial says.
"""

from __future__ import annotations

import itertools
import math

import pytest

from palaestra.errors import InvalidData
from palaestra.teams.aggregate import agreement, concat, last, quorum, vote, weighted_vote


def test_1_votes() -> None:
    assert vote(["a", "b", "b"]) == "b"
    assert vote(["b", "a", "a", "b"]) == "b"
    assert vote([None, None, "a"]) == "a"
    assert vote([None, None]) is None
    assert vote([]) is None
    assert (last(["a", None]), last([])) == (None, None)
    assert (concat(["a", None, "b"]), concat([None])) == ("a\nb", None)


def test_2_weights() -> None:
    for outputs in itertools.product(["a", "b", None], repeat=4):
        assert weighted_vote(outputs, [0.5] * 4) == vote(outputs)
    assert weighted_vote(["a", "b", "b"], [1.0, 0.4, 0.4]) == "a"
    for wrong in ([1.0], [1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(InvalidData, match="one weight for each output"):
            weighted_vote(["a", "b"], wrong)


def test_3_quorum() -> None:
    assert agreement(["a", "a", None, "b"]) == 0.5
    assert quorum(["a", "a", None], share=2 / 3) == "a"
    assert quorum(["a", "a", None], share=0.7) is None


@pytest.mark.parametrize(("p", "n", "best"), [(0.7, 3, 0.7840), (0.7, 5, 0.8369), (0.4, 7, 0.2898)])
def test_4_majority(p: float, n: int, best: float) -> None:
    found = 0.0
    for outputs in itertools.product(["right", "wrong"], repeat=n):
        if vote(outputs) == "right":
            found += p ** outputs.count("right") * (1 - p) ** outputs.count("wrong")
    assert found == pytest.approx(best, abs=5e-5)
