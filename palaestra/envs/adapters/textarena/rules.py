"""`Rules`: what Palaestra adds to a game of the package: its legal moves, a brief text of the situation, an expert."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Game = Any  # an object of the package
Legal = Callable[[Game, int], list[str]]  # game, seat → the moves, without brackets
Brief = Callable[[Game, int], str]  # game, seat → the situation
Expert = Callable[[Game, int, random.Random], str]  # game, seat, generator → a move


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one class of games.

    Attributes:
        legal: gives the legal moves, without brackets; a finite part of them, if any answer is legal.
        brief: gives the situation in a few lower-case words, with all that the player to move may know.
        expert: gives a good move; it may use what is hidden from players. None: the game has no expert.
        why_no_expert: the reason, if there is none.
    """

    legal: Legal
    brief: Brief
    expert: Expert | None = None
    why_no_expert: str = ""


def facts(game: Game) -> Any:
    """The situation as the package keeps it."""
    return game.state.game_state


def rows(board: Sequence[Sequence[str]], own: str, empty: Sequence[str]) -> str:
    """A board as one line of signs: `+` is an own piece, `-` another player's, `.` is empty; `/` separates rows."""
    sign = dict.fromkeys(empty, ".") | {own: "+"}
    return " / ".join(" ".join(sign.get(cell, "-") for cell in row) for row in board)
