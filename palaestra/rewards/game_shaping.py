"""Rewards of form in games (MARS): a bonus for a readable and a short turn, a price for an illegal move.

Knows the columns illegal, invalid and token_count. Knows nothing of any game.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, PositiveInt, register


@register("reward", "game_shaping", source="arXiv 2510.15414, secondary")
def game_shaping(
    table: StepTable,
    *,
    format: NonNegative = 0.05,
    illegal: NonNegative = 10.0,
    length: NonNegative = 0.5,
    shortest: PositiveInt = 11,
    longest: PositiveInt = 2048,
) -> Float[Tensor, " rows"]:
    """Add to the reward of each turn what its form deserves.

        r + format + length · clip(1 − (n − shortest) / (longest − shortest), 0, 1)     after a legal move of n tokens
        r − illegal                                                                  after an illegal one

    Args:
        table: columns token_count; illegal or invalid (rows,), 1 where the move was none; absent, if none was.
        format: bonus of a legal move. Higher: forms are learned sooner, but long games pay too. Usual: 0.05.
        illegal: price of an illegal move. Higher: they vanish sooner. Usual: 10, of rewards up to 4.
        length: bonus of a short turn; 0 for policies whose actions have one token. Usual: 0.5.
        shortest, longest: tokens up to which the whole bonus is paid, and from which on none is.

    Returns: float32 (rows,).
    Raises: RecipeError, unless shortest < longest.
    """
    if shortest >= longest:
        raise RecipeError(
            where="reward: game_shaping",
            what=f"shortest {shortest} is not below longest {longest}.",
            remedy="Give `shortest` and `longest` as numbers of tokens, the smaller one first.",
        )
    brief = 1 - (table["token_count"].double() - shortest) / (longest - shortest)
    bonus = format + length * brief.clamp(0, 1)
    bad = torch.zeros(len(table), dtype=torch.bool)
    for name in ("illegal", "invalid"):
        if name in table:
            bad |= table[name] != 0
    return (table["reward"].double() + torch.where(bad, -illegal, bonus)).float()
