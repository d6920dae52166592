"""Policies of a game as tables, and measures of them: exploitability, averages, cross-play.

A table holds the probabilities of the legal moves at every information state; `tabular.py` makes one from a policy.
`average` gives the table of a mixture, from which each player draws one member at the start of a game. OpenSpiel
computes the gain of best responses.
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
MOST = 500_000  # information states; larger games get no table


@dataclass(frozen=True, slots=True, eq=False)
class Tabular(Mapping[str, Mapping[int, float]]):
    """A policy as a table: information state → legal move → probability. The probabilities of a state sum to 1.

    Attributes:
        moves: the table.
        players: information state → its player.
        outside: information state → the probability of all texts that are no legal move in the game's words, before
            the legal moves were scaled to 1. It is 0 for network policies, which only draw legal moves.
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
    """An information state.

    Attributes:
        seen: the observation of the player there.
        moves: the legal moves: index → text.
        past: the player's own moves on the way there, each with the information state in which it was made.
    """

    key: str
    player: int
    seen: Observation
    moves: dict[int, str]
    past: tuple[tuple[str, int], ...]


def places(game: Game) -> list[Place]:
    """All information states. States with fewer own moves before them come first.

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
            raise InvalidData(
                where="exploitability",
                what=f"the game has more than {MOST:,} information states, too many for a table.",
                remedy="Choose a smaller game.",
            )
    return sorted(found.values(), key=lambda place: len(place.past))


def uniform(game: Game) -> Tabular:
    """The policy that plays every legal move with equal probability."""
    known = places(game)
    moves = {place.key: dict.fromkeys(place.moves, 1.0 / len(place.moves)) for place in known}
    return Tabular(moves, {place.key: place.player for place in known})


# ---- exploitability and averages --------------------------------------------------------------------------
def nash_conv(game: Game, policy_of: Moves) -> float:
    """The sum of what each player would gain by a best response to the others; 0 only in an equilibrium.

        Σ_i  max_{π'_i} u_i(π'_i, π_{−i}) − u_i(π)              in the game's own units: chips in Kuhn poker

    In a game of two players, exploitability is half of it. Uniform play in Kuhn poker has 0.9167.

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
            what=f"OpenSpiel refuses this table: {str(error).splitlines()[0]}",
            remedy="Give a policy for every information state of the game.",
        ) from error


def average(game: Game, tables: Sequence[Moves], *, weights: Sequence[float] | None = None) -> Tabular:
    """The policy that plays like a mixture from which each player draws one member at the start of a game.

        π̄(a|s) = Σ_t w_t ρ_t(s) π_t(a|s) / Σ_t w_t ρ_t(s)       ρ_t(s) = Π π_t of the player's own moves on its way to s

    For the snapshots of a run this is the average policy of fictitious play. For the members of a pool of opponents it
    is an opponent drawn uniformly from the pool. In a state that no member reaches it is the weighted mean of their
    probabilities.

    Args:
        weights: of the tables; None: all equal.

    Raises: InvalidData, if there is no table.
    """
    if not tables:
        raise InvalidData(where="exploitability", what="`tables` is empty.", remedy="Give at least one table.")
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


# ---- cross-play -------------------------------------------------------------------------------------------
def cross_play(game: Game, tables: Sequence[Moves]) -> np.ndarray:
    """The exact mean payoff of each policy (row) against each other (column), over both seats: float64 (n, n).

    In a zero-sum game the matrix is antisymmetric and its diagonal 0.

    Raises: InvalidData, if the game does not have two players.

    >>> kuhn = uniform("kuhn_poker")
    >>> bold = {place: {0: 0.0, 1: 1.0} for place in kuhn}
    >>> cross_play("kuhn_poker", [kuhn, bold]).round(3).tolist()
    [[0.0, -0.375], [0.375, 0.0]]
    """
    loaded = load(game) if isinstance(game, str) else game.game
    if loaded.num_players() != 2:
        raise InvalidData(
            where="cross_play",
            what=f"the game has {loaded.num_players()} players; it needs 2.",
            remedy="Choose a game of two players.",
        )
    start = loaded.new_initial_state()
    found = np.zeros((len(tables), len(tables)))
    for i, j in itertools.product(range(len(tables)), repeat=2):
        first, _ = _values(start, tables[i], tables[j])
        _, second = _values(start, tables[j], tables[i])
        found[i, j] = (first + second) / 2
    return found


def cycles(payoffs: np.ndarray, *, margin: float = 0.0) -> float:
    """The share, in [0, 1], of triples of policies that form a cycle: a beats b, b beats c and c beats a.

    Args:
        payoffs: (n, n), antisymmetric, as `cross_play` gives it.
        margin: a policy beats another one if its payoff exceeds this. Higher: fewer cycles.

    Without cycles a rating can say who beats whom. With cycles no rating can.

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
    """The expected payoffs of both players from a state on."""
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
