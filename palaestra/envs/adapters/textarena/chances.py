"""Rules of games with chance or hidden choices: dice, cards, matrix games, bandits and the secretary problem.

For each game of the package they give the legal moves, a brief text and, for Pig, an expert.
"""

from __future__ import annotations

import random

from palaestra.envs.adapters.textarena.rules import Game, Rules, facts

CHANCE = "even the best play often loses by chance"
HOLD = 20  # the expert holds at this many points in a turn, which is nearly optimal


# ---- dice -------------------------------------------------------------------------------------------------
def _pig_moves(game: Game, seat: int) -> list[str]:
    return ["roll", "hold"]


def _pig(game: Game, seat: int) -> str:
    scores = facts(game)["scores"]
    this = facts(game)["turn_total"]
    return f"you {scores[seat]}. other {scores[1 - seat]}. this turn {this}. goal {game.winning_score}"


def _pig_expert(game: Game, seat: int, draw: random.Random) -> str:
    this = facts(game)["turn_total"]
    return "hold" if this >= HOLD or facts(game)["scores"][seat] + this >= game.winning_score else "roll"


def _bids(game: Game, seat: int) -> list[str]:
    bid = facts(game)["current_bid"]
    dice = sum(facts(game)["remaining_dice"].values())
    higher = [
        f"bid: {quantity}, {face}"
        for quantity in range(max(bid["quantity"], 1), dice + 1)
        for face in range(max(bid["face_value"], 1), 7)
        if (quantity, face) != (bid["quantity"], bid["face_value"])
    ]
    return (["call"] if bid["quantity"] else []) + higher or ["call"]


def _dice(game: Game, seat: int) -> str:
    here, count = facts(game), game.state.num_players
    own = " ".join(map(str, here["dice_rolls"][seat]))
    others = " ".join(str(here["remaining_dice"][(seat + after) % count]) for after in range(1, count))
    bid = here["current_bid"]
    said = f"{bid['quantity']} of {bid['face_value']}" if bid["quantity"] else "none"
    return f"your dice {own}. dice of others {others}. last bid {said}"


# ---- cards ------------------------------------------------------------------------------------------------
def _kuhn_moves(game: Game, seat: int) -> list[str]:
    return list(facts(game)["current_legal_action_tree"])


def _kuhn(game: Game, seat: int) -> str:
    here = facts(game)
    card = "jqk"[here["player_cards"][seat]]
    chips = here["player_chips"]
    said = "a bet is there" if "fold" in here["current_legal_action_tree"] else "no bet is there"
    first = here["starting_player"] == seat
    return (
        f"round {here['current_round']} of {game.max_rounds}. your card {card}. "
        f"you are {'first' if first else 'second'}. {said}. you {chips[seat]} other {chips[1 - seat]}"
    )


def _cards(game: Game, seat: int) -> list[str]:
    return ["hit", "stand"]


def _blackjack(game: Game, seat: int) -> str:
    here = facts(game)
    own = " ".join(card[:-1].lower() for card in here["player_hand"])
    score = game._hand_score(here["player_hand"])
    return (
        f"hand {here['hand_number']} of {here['num_hands']}. yours {own} makes {score}. "
        f"dealer {here['dealer_hand'][0][:-1].lower()}. won {here['results_summary']['win']}"
    )


# ---- matrix games -----------------------------------------------------------------------------------------
def _hands(game: Game, seat: int) -> list[str]:
    return ["rock", "paper", "scissors"]


def _pennies(game: Game, seat: int) -> list[str]:
    return ["heads", "tails"]


def _rounds(game: Game, seat: int) -> str:
    here = facts(game)
    last = here["history"][-1] if here["history"] else None
    told = f"last you {last[seat]} other {last[1 - seat]}" if last else "no round before"
    points = f"you {here['points'][seat]} other {here['points'][1 - seat]}"
    return f"you are {seat}. round {here['round']} of {game.num_rounds}. {told}. {points}"


# ---- bandits and the secretary problem --------------------------------------------------------------------
def _buttons(game: Game, seat: int) -> list[str]:
    return list(game.buttons)


def _bandit(game: Game, seat: int) -> str:
    found = " ".join(f"{name} {int(sum(wins))} of {len(wins)}" for name, wins in facts(game)["history"].items())
    left = game.num_turns - game.state.turn
    return f"{found}. {f'tries left {left}' if left else 'now name the best'}"


def _offers(game: Game, seat: int) -> list[str]:
    return ["accept", "continue"]


def _offer(game: Game, seat: int) -> str:
    seen = facts(game)["draws"][: facts(game)["current_idx"]]
    return f"value {len(seen)} of {game.N} is {seen[-1]:.2f}. best before {max(seen[:-1], default=0.0):.2f}"


CHANCES = {
    "PigDiceEnv": Rules(legal=_pig_moves, brief=_pig, expert=_pig_expert),
    "LiarsDiceEnv": Rules(legal=_bids, brief=_dice, why_no_expert=CHANCE),
    "KuhnPokerEnv": Rules(legal=_kuhn_moves, brief=_kuhn, why_no_expert=CHANCE),
    "BlackjackEnv": Rules(legal=_cards, brief=_blackjack, why_no_expert=CHANCE),
    "IteratedRockPaperScissorsEnv": Rules(
        legal=_hands, brief=_rounds, why_no_expert="the best play is uniformly random, like the opponent `random`"
    ),
    "IteratedMatchingPenniesEnv": Rules(
        legal=_pennies, brief=_rounds, why_no_expert="the best play is uniformly random, like the opponent `random`"
    ),
    "BanditEnv": Rules(legal=_buttons, brief=_bandit, why_no_expert=CHANCE),
    "SecretaryEnv": Rules(legal=_offers, brief=_offer, why_no_expert=CHANCE),
}
