"""Policies of a game as tables, and what tables are worth: exploitability, averages, who beats whom.

A table holds the probabilities of the legal moves at every information state; `tabular.py` makes one of a policy.
Tables can be averaged (a mixture whose member is drawn at the beginning of a game is such an average), and OpenSpiel
computes what best answers gain against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from palaestra.data import Observation
from palaestra.envs.adapters.openspiel.games import load, package
from palaestra.envs.adapters.openspiel.world import OpenSpiel
from palaestra.errors import InvalidData

Game = str | OpenSpiel
Moves = Mapping[str, Mapping[int, float]]  # information state → move → probability
MOST = 500_000  # information states of a game that is still put into a table


@dataclass(frozen=True, slots=True, eq=False)
class Tabular(Mapping[str, Mapping[int, float]]):
    """A policy as a table: information state → legal move → probability, summing to 1 at each.

    Attributes:
        moves: the table. players: whose information state it is.
        outside: the probability of whatever is no legal move in the game's words, before the legal ones were scaled
            to 1; 0 for networks, which are told what is legal.
    """

    moves: dict[str, dict[int, float]]
    players: dict[str, int]
    outside: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, place: str) -> dict[int, float]:
        return self.moves[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.moves)

    def __len__(self) -> int:
        return len(self.moves)


class Place(NamedTuple):
    """An information state: whose, what is seen there, the legal moves as texts, and the player's own way to it."""

    key: str
    player: int
    seen: Observation
    moves: dict[int, str]
    past: tuple[tuple[str, int], ...]


def places(game: Game) -> list[Place]:
    """All information states, a player's earlier ones before the later ones.

    Raises: InvalidData, for a game with more than 500,000 of them; RecipeError, for an unknown game.
    """
    environment = OpenSpiel(game=game) if isinstance(game, str) else game
    found: dict[str, Place] = {}
    start = environment.game.new_initial_state()
    waiting: list[tuple[Any, tuple[tuple[tuple[str, int], ...], ...]]] = [(start, ((),) * start.num_players())]
    while waiting:
        state, pasts = waiting.pop()
        if state.is_terminal():
            continue
        player = state.current_player()
        key = None if state.is_chance_node() else state.information_state_string()
        if key is not None and key not in found:
            texts = {move: state.action_to_string(player, move) for move in state.legal_actions()}
            found[key] = Place(key, player, environment.observation(state), texts, pasts[player])
        for move in reversed(state.legal_actions()):
            own = pasts
            if key is not None:
                own = (*pasts[:player], (*pasts[player], (key, move)), *pasts[player + 1 :])
            waiting.append((state.child(move), own))
        if len(found) > MOST:
            raise InvalidData(where="exploitability", what=f"the game has more than {MOST:,} information states.")
    return sorted(found.values(), key=lambda place: len(place.past))


def uniform(game: Game) -> Tabular:
    """Every legal move alike."""
    known = places(game)
    moves = {place.key: dict.fromkeys(place.moves, 1.0 / len(place.moves)) for place in known}
    return Tabular(moves, {place.key: place.player for place in known})


# ---- what tables are worth --------------------------------------------------------------------------------
def nash_conv(game: Game, policy_of: Moves) -> float:
    """What all players together would gain if each alone changed to a best answer; 0 in an equilibrium alone.

        Σ_i  max_{π'_i} u_i(π'_i, π_{−i}) − u_i(π)              in the game's own units: chips in Kuhn poker

    The exploitability of a game of two is half of it. Uniform play in Kuhn poker: 0.9167.

    Args:
        policy_of: a table with all information states of the game, such as `tabular` or `average` give.

    Raises: InvalidData, if an information state is missing.
    """
    loaded = load(game) if isinstance(game, str) else game.game
    table = {key: list(moves.items()) for key, moves in policy_of.items()}
    try:
        return float(package().nash_conv(loaded, table))
    except package().SpielError as error:
        raise InvalidData(
            where="exploitability",
            what=f"OpenSpiel cannot judge this table: {str(error).splitlines()[0]}",
            remedy="Give a policy for every information state of the game.",
        ) from error


def average(game: Game, tables: Sequence[Moves], *, weights: Sequence[float] | None = None) -> Tabular:
    """The policy that plays like a mixture whose member each player draws at the beginning of a game.

        π̄(a|s) = Σ_t w_t ρ_t(s) π_t(a|s) / Σ_t w_t ρ_t(s)       ρ_t(s) = Π π_t of the player's own moves on its way to s

    Of the snapshots of a run it is fictitious play's average; of a pool's members it is the pool, drawn uniformly.
    Where no member comes to, it is the plain mean.

    Args:
        weights: of the tables; None: all alike.

    Raises: InvalidData, without any table.
    """
    if not tables:
        raise InvalidData(where="exploitability", what="there is no table to average.")
    shares = [1.0] * len(tables) if weights is None else list(weights)
    known = places(game)
    moves: dict[str, dict[int, float]] = {}
    for place in known:
        reach = [w * _reach(table, place) for w, table in zip(shares, tables, strict=True)]
        if sum(reach) == 0:
            reach = shares
        total = sum(reach)
        moves[place.key] = {
            move: sum(r * table[place.key].get(move, 0.0) for r, table in zip(reach, tables, strict=True)) / total
            for move in place.moves
        }
    return Tabular(moves, {place.key: place.player for place in known})


def _reach(table: Moves, place: Place) -> float:
    reach = 1.0
    for key, move in place.past:
        reach *= table[key].get(move, 0.0)
    return reach


# ---- who beats whom ---------------------------------------------------------------------------------------
def cross_play(game: Game, tables: Sequence[Moves]) -> np.ndarray:
    """What each policy wins from each other on average over both seats, exactly: float64 (policies, policies).

    In a zero-sum game the matrix is antisymmetric and its diagonal 0.

    Raises: InvalidData, for a game that is not of two players.

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
