"""Debate, each rule pinned by a test of the same number.

1. One round is self-consistency: no debater reads an answer. One debater is self-refinement: it reads its own last
   answer.
2. The majority of the last round acts, a tie goes to the lowest number, and `changed` is the share of debaters that
   gave another answer.
3. If wrong debaters who read a right answer become right with probability u, and right ones who read a wrong answer
   become wrong with v, the majority is right as often as the Markov chain on the number of right debaters predicts.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from palaestra.data import Observation
from palaestra.systems.debate.program import debate
from tests.teams.playing import acts, play, right, shown_to, told_word


def test_1_limits() -> None:
    (alone,) = play(debate, {"debater_1": ["a", "b", "c"]}, options={"debaters": 1, "rounds": 3})
    assert shown_to(alone, "debater_1") == [[], ["you: a"], ["you: b"]]
    says = {"debater_1": right, "debater_2": ["mud"], "debater_3": right}
    (votes,) = play(debate, says, options={"rounds": 1})
    assert [shown_to(votes, name) for name in says] == [[[]]] * 3
    assert votes.outcome == 1.0


def test_2_who_wins() -> None:
    def yields(turn: int, seen: Observation) -> str:
        return "mud" if turn == 0 else told_word(seen)

    (played,) = play(debate, {"debater_1": right, "debater_2": yields}, options={"debaters": 2})
    assert (played.returns, played.info["agreement"], played.info["changed"]) == ({"debater_1": 1.0}, 1.0, 0.5)
    (tied,) = play(debate, {"debater_1": ["mud"], "debater_2": right}, options={"debaters": 2})
    assert tied.returns == {"debater_1": 0.0}
    assert len(acts(tied)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("u", "v", "best"), [(0.5, 0.1, 0.8064), (0.1, 0.5, 0.3744)])
def test_3_markov_chain(u: float, v: float, best: float) -> None:
    p, n, draw = 0.6, 4000, np.random.default_rng(11)

    def argue(turn: int, seen: Observation) -> str:
        word, lines = told_word(seen), (seen.text or "").split("\n")[1:]
        good = [line.endswith(word) for line in lines]
        if not lines:
            return word if draw.random() < p else "mud"
        own = next(line for line in lines if line.startswith("you")).endswith(word)
        turns = draw.random() < (v if own else u) and (not all(good) if own else any(good))
        return word if own != turns else "mud"

    played = play(debate, {f"debater_{i}": argue for i in (1, 2, 3)}, count=n)
    found = sum(one.outcome or 0.0 for one in played) / n
    assert abs(found - best) <= 3 * math.sqrt(best * (1 - best) / n)
