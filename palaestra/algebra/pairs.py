"""Preferences: which of two was better, as pairs and as a loss.

Knows scores, sets and pairs. Knows nothing of trajectories, models or where a score comes from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from palaestra.data.keys import Key


class Pairs(NamedTuple):
    """Positions of the better and of the worse one of each pair: int64 (pairs,) each."""

    better: Tensor
    worse: Tensor


def preference_pairs(score: Shaped[Tensor, " units"], *, by: Key, every: bool = False) -> Pairs:
    """Pairs of unequal score inside each set.

    One-to-one pairs join the best with the worst, the second best with the second worst and so on while their
    scores differ, so a unit is in one pair at most. Equals stand in their own order.

    Args:
        by: the sets; a unit of weight 0 is in no pair.
        every: all pairs of a set instead; a unit may be in many.
    """
    units = (by.weights > 0).nonzero()[:, 0]
    codes, score = by.codes[units], score.double()[units]
    if every:
        above = (codes[:, None] == codes[None, :]) & (score[:, None] > score[None, :])
        better, worse = above.nonzero(as_tuple=True)
    else:  # both orders run through the sets alike: place by place, best and worst, second best and second worst
        better, worse = _sorted(-score, codes), _sorted(score, codes)
        unequal = score[better] > score[worse]
        better, worse = better[unequal], worse[unequal]
    return Pairs(units[better], units[worse])


def _sorted(score: Tensor, codes: Tensor) -> Tensor:
    order = torch.argsort(score, stable=True)
    return order[torch.argsort(codes[order], stable=True)]


def preference_loss(better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """−log sigmoid(better − worse) of each pair: log 2 where both are equal, near 0 where `better` is far above."""
    return torch.nn.functional.softplus(worse - better)
