"""Preferences: which of two was better, as pairs and as a loss.

Knows scores, sets and pairs. Knows nothing of trajectories, models or where a score comes from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data.segments import Key, segment_rank


class Pairs(NamedTuple):
    """Positions of the better and the worse one of each pair: int64 (pairs,) each."""

    better: Tensor
    worse: Tensor


def preference_pairs(score: Float[Tensor, " units"], *, by: Key, every: bool = False) -> Pairs:
    """Pairs of unequal score inside each set.

    One-to-one pairs join the best with the worst, the second best with the second worst and so on, as long as
    their scores differ, so that a unit is used at most once; units of equal score stand in their own order.

    Args:
        by: the sets; a unit of weight 0 is in no pair.
        every: all pairs (better, worse) of a set instead: a unit may be in many.
    """
    counts = by.weights > 0
    units, codes, score = counts.nonzero()[:, 0], by.codes[counts], score.double()[counts]
    if every:
        above = (codes[:, None] == codes[None, :]) & (score[:, None] > score[None, :])
        better, worse = above.nonzero(as_tuple=True)
        return Pairs(units[better], units[worse])
    own = Key(codes, by.size, by.names)
    from_below, from_above = segment_rank(score, by=own), segment_rank(-score, by=own)
    place = torch.full((by.size, len(units)), -1) if not len(units) else _places(codes, from_below, by.size)
    partner = place[codes, from_above] if len(units) else units
    paired = score > score[partner] if len(units) else torch.zeros(0, dtype=torch.bool)
    return Pairs(units[paired], units[partner[paired]])


def _places(codes: Tensor, rank: Tensor, size: int) -> Tensor:
    place = torch.zeros(size, int(rank.max()) + 1, dtype=torch.int64)
    place[codes, rank] = torch.arange(len(codes))
    return place


def preference_loss(better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """−log sigmoid(better − worse) of each pair: log 2 where both are equal, near 0 where the better one is far above."""
    return torch.nn.functional.softplus(worse - better)
