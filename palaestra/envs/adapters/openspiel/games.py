"""Games of OpenSpiel (arXiv 1908.09453): how they are loaded, and the experts that play them."""

from __future__ import annotations

import functools
import importlib
import itertools
import random
from collections.abc import Callable
from typing import Any

from palaestra.errors import RecipeError, missing_extra, nearest

PLACE = "environment openspiel"
Solver = Callable[[Any, random.Random], int]  # a state and a generator → the move of the player to move
NASH_ROUNDS = 1000  # iterations of CFR+; after them NashConv is 2e-4 in Kuhn poker
SIMULATIONS = 500  # of tree search, for one move
MOST_JOINT = 10_000  # policies of the first player that are tried for the best joint policy


@functools.cache
def package() -> Any:
    """The package. Raises: MissingExtra."""
    try:
        return importlib.import_module("pyspiel")
    except ImportError as error:
        raise missing_extra("open_spiel", extra="envs", needed_for=PLACE) from error


@functools.cache
def load(text: str) -> Any:
    """Load the game of a game string, such as `kuhn_poker(players=3)`.

    Raises: RecipeError, for an unknown game or one with simultaneous moves; MissingExtra.
    """
    spiel, name = package(), text.partition("(")[0].strip()
    known = spiel.registered_names()
    if name not in known:
        raise RecipeError(
            where=PLACE,
            what=f"OpenSpiel has no game `{name}`.",
            options=nearest(name, known),
            remedy="Set `game` to a name that pyspiel.registered_names() lists.",
        )
    try:
        game = spiel.load_game(text)
    except spiel.SpielError as error:
        raise RecipeError(where=PLACE, what=f"OpenSpiel cannot load `{text}`: {str(error).splitlines()[0]}") from error
    if game.get_type().dynamics != spiel.GameType.Dynamics.SEQUENTIAL:
        raise RecipeError(
            where=PLACE,
            what=f"in `{name}` players move at the same time.",
            remedy=f"Let them move one after the other: game: turn_based_simultaneous_game(game={name}()).",
        )
    return game


def common_payoff(game: Any) -> bool:
    """Whether all players always get the same payoff."""
    return bool(game.get_type().utility == package().GameType.Utility.IDENTICAL)


# ---- good play --------------------------------------------------------------------------------------------
@functools.cache
def solver(text: str) -> Solver | None:
    """The expert of a game; None if it has none.

    Tic-tac-toe: exact minimax, any optimal move. Kuhn poker of two players: an equilibrium by CFR+ (arXiv 1407.5042).
    Tiny Hanabi: the best joint policy. Other zero-sum games of two players with perfect information and no chance:
    Monte-Carlo tree search.
    """
    game, kinds = load(text), package().GameType
    kind = game.get_type()
    pair, zero_sum = game.num_players() == 2, kind.utility == kinds.Utility.ZERO_SUM
    if kind.short_name == "kuhn_poker" and pair:
        return _equilibrium(game)
    if kind.short_name == "tiny_hanabi" and pair:
        return _joint_optimum(game)
    certain = kind.chance_mode == kinds.ChanceMode.DETERMINISTIC
    if not (pair and zero_sum and certain and kind.information == kinds.Information.PERFECT_INFORMATION):
        return None
    return _minimax() if kind.short_name == "tic_tac_toe" else _tree_search(game)


def _minimax() -> Solver:
    """Backward induction over positions. Each position is solved once."""
    values: dict[str, float] = {}

    def value(state: Any) -> float:
        """The payoff of the first player under optimal play."""
        place = str(state)
        if place not in values:
            best = max if state.current_player() == 0 else min
            ends = state.is_terminal()
            values[place] = (
                state.returns()[0] if ends else best(value(state.child(move)) for move in state.legal_actions())
            )
        return values[place]

    def choose(state: Any, draw: random.Random) -> int:
        worth = {move: value(state.child(move)) for move in state.legal_actions()}
        best = max(worth.values()) if state.current_player() == 0 else min(worth.values())
        return draw.choice([move for move, gain in worth.items() if gain == best])

    return choose


def _equilibrium(game: Any) -> Solver:
    solving = package().CFRPlusSolver(game)
    for _ in range(NASH_ROUNDS):
        solving.evaluate_and_update_policy()
    shares = solving.tabular_average_policy().policy_table()  # information state → [(move, probability), …]

    def choose(state: Any, draw: random.Random) -> int:
        moves, weights = zip(*shares[state.information_state_string()], strict=True)
        return int(draw.choices(moves, weights)[0])

    return choose


def _joint_optimum(game: Any) -> Solver | None:
    """The best joint policy of a game of common payoff. Each policy of the first player is tried with the second
    player's best response to it. None if there are more than `MOST_JOINT` policies to try.
    """
    places = _places(game.new_initial_state(), 0)
    choices = [[(place, move) for move in moves] for place, moves in sorted(places.items())]
    if functools.reduce(lambda total, moves: total * len(moves), choices, 1) > MOST_JOINT:
        return None
    best, chosen = float("-inf"), dict[str, int]()
    for first in itertools.product(*choices):
        policy = {place: [(move, float(move == taken)) for move in places[place]] for place, taken in first}
        answer = package().TabularBestResponse(game, 1, policy)
        value = answer.value_from_state(game.new_initial_state())
        if value > best:
            best, chosen = value, dict(first) | dict(answer.get_best_response_actions())
    return lambda state, draw: chosen[state.information_state_string()]


def _places(state: Any, player: int) -> dict[str, list[int]]:
    """The information states of one player in `state` and after it, each with its legal moves."""
    if state.is_terminal():
        return {}
    own = not state.is_chance_node() and state.current_player() == player
    found = {state.information_state_string(): state.legal_actions()} if own else {}
    for move in state.legal_actions():
        found |= _places(state.child(move), player)
    return found


def _tree_search(game: Any) -> Solver:
    def choose(state: Any, draw: random.Random) -> int:
        seed = draw.randrange(2**31)
        rollouts = package().RandomRolloutEvaluator(1, seed)
        return int(package().MCTSBot(game, rollouts, 2.0, SIMULATIONS, 100, True, seed, False).step(state))

    return choose
