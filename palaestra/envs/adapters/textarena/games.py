"""The rules of all games that have them, by the name of the package's class."""

from __future__ import annotations

from palaestra.envs.adapters.textarena.boards import BOARDS
from palaestra.envs.adapters.textarena.chances import CHANCES
from palaestra.envs.adapters.textarena.puzzles import PUZZLES
from palaestra.envs.adapters.textarena.rules import Game, Rules

RULES: dict[str, Rules] = BOARDS | PUZZLES | CHANCES


def rules_of(game: Game) -> Rules | None:
    """The rules of a game; None if it has none here and agents only get the game's own texts."""
    return RULES.get(type(game).__name__)
