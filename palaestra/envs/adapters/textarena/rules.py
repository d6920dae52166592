"""What is known of a game beyond its own words: which moves are legal, how it looks in short, who plays it well.

Knows the shape of this knowledge. Knows no game.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Game = Any  # an object of the package
Legal = Callable[[Game, int], list[str]]  # game, seat → the moves, without their brackets
Brief = Callable[[Game, int], str]
Expert = Callable[[Game, int, random.Random], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of one class of games.

    Attributes:
        legal: the moves that the game takes now, without brackets; of open answers a finite list.
        brief: the situation in few lower-case words, complete for who is to move.
        expert: a good move; it may know what is hidden. None where nobody is known.
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
    """A board as one line of signs: `+` is one's own, `-` somebody else's, `.` empty; a slash ends a row."""
    sign = dict.fromkeys(empty, ".") | {own: "+"}
    return " / ".join(" ".join(sign.get(cell, "-") for cell in row) for row in board)
