"""Cross-play: (1) the payoffs are exact and antisymmetric; (2) `cycles` finds cycles, and none in an order; (3) games
that do not have two players are refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from palaestra.envs.adapters.openspiel.tables import cross_play, cycles, uniform
from palaestra.errors import InvalidData
from tests.extras import needs
from tests.messages import told

pytestmark = needs("pyspiel")
RPS = "turn_based_simultaneous_game(game=matrix_rps())"


def pure(move: int) -> dict[str, dict[int, float]]:
    """Rock, paper or scissors, always."""
    return {key: {own: float(own == move) for own in moves} for key, moves in uniform(RPS).items()}


def test_1_rock_paper_scissors() -> None:
    found = cross_play(RPS, [pure(0), pure(1), pure(2), uniform(RPS)])
    assert found.tolist() == [[0, -1, 1, 0], [1, 0, -1, 0], [-1, 1, 0, 0], [0, 0, 0, 0]]


def test_1_seats_are_swapped() -> None:
    bold = {key: {0: 0.0, 1: 1.0} for key in uniform("kuhn_poker")}
    shy = {key: {0: 1.0, 1: 0.0} for key in uniform("kuhn_poker")}
    found = cross_play("kuhn_poker", [bold, shy])
    assert found[0, 1] == pytest.approx(1.0)  # who always folds loses the ante in either seat
    assert found == pytest.approx(-found.T)


def test_2_cycles() -> None:
    rps = cross_play(RPS, [pure(0), pure(1), pure(2)])
    assert cycles(rps) == cycles(-rps) == 1.0
    assert cycles(rps, margin=1.0) == 0.0
    order = np.array([[0, 1, 1, 1], [-1, 0, 1, 1], [-1, -1, 0, 1], [-1, -1, -1, 0]])
    assert cycles(order) == 0.0
    order[0, 3], order[3, 0] = -1, 1  # the last beats the first: 0 > 1 > 3 > 0 and 0 > 2 > 3 > 0
    assert cycles(order) == 0.5
    assert cycles(np.zeros((2, 2))) == 0.0


def test_3_three_players() -> None:
    with told(InvalidData, "3 players"):
        cross_play("kuhn_poker(players=3)", [])
