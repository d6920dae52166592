"""Ratings: how several policies of a game of two fare against each other, and whether "better" runs in circles.

Knows games of OpenSpiel and policies as tables. Knows nothing of runs, and nothing of how policies were trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.envs.adapters.openspiel.games import load
from palaestra.errors import InvalidData
from palaestra.evaluation.exploitability import Game, Moves


def cross_play(game: Game, tables: Sequence[Moves]) -> np.ndarray:
    """What each policy wins from each other on average over both seats, exactly: float64 (policies, policies).

    In a zero-sum game the matrix is antisymmetric and its diagonal 0.

    Raises: InvalidData, for a game that is not of two players.

    >>> from palaestra.evaluation.exploitability import uniform
    >>> kuhn = uniform("kuhn_poker")
    >>> bold = {place: {0: 0.0, 1: 1.0} for place in kuhn}
    >>> cross_play("kuhn_poker", [kuhn, bold]).round(3).tolist()
    [[0.0, -0.375], [0.375, 0.0]]
    """
    loaded = load(game) if isinstance(game, str) else game.game
    if loaded.num_players() != 2:
        raise InvalidData(
            where="cross_play", what=f"the game has {loaded.num_players()} players, and seats are swapped."
        )
    start = loaded.new_initial_state()
    found = np.zeros((len(tables), len(tables)))
    for i, j in itertools.product(range(len(tables)), repeat=2):
        first, _ = _values(start, tables[i], tables[j])
        _, second = _values(start, tables[j], tables[i])
        found[i, j] = (first + second) / 2
    return found


def cycles(payoffs: np.ndarray, *, margin: float = 0.0) -> float:
    """The share of triples of policies that run in a circle: a beats b, b beats c and c beats a. In [0, 1].

    Args:
        payoffs: (policies, policies), antisymmetric, as `cross_play` gives it.
        margin: what counts as beating. Higher: fewer circles.

    A pool without circles has a best member, and a rating says all of it; with them no rating does.

    >>> cycles(np.array([[0, 1, -1], [-1, 0, 1], [1, -1, 0]]))
    1.0
    """
    beats = np.asarray(payoffs) > margin
    triples = list(itertools.combinations(range(len(beats)), 3))
    found = sum(
        bool((beats[a, b] and beats[b, c] and beats[c, a]) or (beats[b, a] and beats[c, b] and beats[a, c]))
        for a, b, c in triples
    )
    return found / len(triples) if triples else 0.0


def _values(state: Any, first: Moves, second: Moves) -> tuple[float, float]:
    """What both get from here on average."""
    if state.is_terminal():
        gains = state.returns()
        return float(gains[0]), float(gains[1])
    if state.is_chance_node():
        moves = state.chance_outcomes()
    else:
        moves = list((first, second)[state.current_player()][state.information_state_string()].items())
    total = np.zeros(2)
    for move, share in moves:
        if share > 0:
            total += share * np.array(_values(state.child(move), first, second))
    return float(total[0]), float(total[1])
