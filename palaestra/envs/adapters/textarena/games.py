"""Of which games more is known than their own words, by the name of their class.

Knows all rules. Knows nothing of agents.
"""

from __future__ import annotations

from palaestra.envs.adapters.textarena.boards import BOARDS
from palaestra.envs.adapters.textarena.chances import CHANCES
from palaestra.envs.adapters.textarena.puzzles import PUZZLES
from palaestra.envs.adapters.textarena.rules import Game, Rules

RULES: dict[str, Rules] = BOARDS | PUZZLES | CHANCES


def rules_of(game: Game) -> Rules | None:
    """What is known of a game; None where it is only its own words."""
    return RULES.get(type(game).__name__)
