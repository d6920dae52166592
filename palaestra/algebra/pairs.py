"""Preferences: pairs of a better and a worse unit, and a loss over such pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from palaestra.algebra.segments import segment_mean
from palaestra.data.keys import Key
from palaestra.data.pairs import PairTable
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData


class Pairs(NamedTuple):
    """Positions of the better and of the worse unit of each pair: int64 (pairs,) each."""

    better: Tensor
    worse: Tensor


def preference_pairs(score: Shaped[Tensor, " units"], *, by: Key, every: bool = False) -> Pairs:
    """Pairs of unequal score inside each set.

    The best unit is paired with the worst, the second best with the second worst and so on, while their scores
    differ. So a unit is in at most one pair. Units of equal score keep their order.

    Args:
        by: the sets; a unit of weight 0 is in no pair.
        every: make all pairs of unequal score in a set instead; a unit may be in many of them.
    """
    units = (by.weights > 0).nonzero()[:, 0]
    codes, score = by.codes[units], score.double()[units]
    if every:
        above = (codes[:, None] == codes[None, :]) & (score[:, None] > score[None, :])
        better, worse = above.nonzero(as_tuple=True)
    else:  # both list the sets in one order: equal places hold the best and the worst, then the second ones
        better, worse = _sorted(-score, codes), _sorted(score, codes)
        unequal = score[better] > score[worse]
        better, worse = better[unequal], worse[unequal]
    return Pairs(units[better], units[worse])


def outcome_pairs(
    table: StepTable, *, column: str = "outcome", by: tuple[str, ...] = ("group",), every: bool = False
) -> PairTable:
    """The pairs of trajectories of one task whose results differ.

    Args:
        table: column `column` (rows,), the same number on all rows of a trajectory.
        by: columns in which the two trajectories of a pair agree. every: as in `preference_pairs`.

    Raises: MissingColumn, if the table lacks the column; InvalidData, for a result that is not finite.

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "b", "c"], agent=["x"] * 3, turn=[0] * 3,
    ...                   reward=[0.0] * 3, outcome=[0.0, 1.0, 1.0])
    >>> outcome_pairs(table, every=True).pairs.tolist()
    [[1, 0], [2, 0]]
    """
    key, sets = table.key("trajectory"), table.key(*by)
    score = segment_mean(table[column], by=key)
    counts = torch.zeros(key.size, dtype=torch.float64).index_add(0, key.codes, (table.row_weight > 0).double())
    if not bool(score[counts > 0].isfinite().all()):
        raise InvalidData(
            where=f"column `{column}`", what="a trajectory has no finite result, so it cannot be compared."
        )
    set_of = torch.zeros(key.size, dtype=torch.int64).index_copy(0, key.codes, sets.codes)
    found = preference_pairs(score, by=Key(set_of, sets.size, by, counts), every=every)
    trajectory = torch.zeros(key.size, dtype=torch.int64).index_copy(0, key.codes, table["trajectory"])
    pairs = trajectory[torch.stack([found.better, found.worse], 1)]
    return PairTable(table=table, pairs=pairs, weight=torch.ones(len(pairs)))


def _sorted(score: Tensor, codes: Tensor) -> Tensor:
    order = torch.argsort(score, stable=True)
    return order[torch.argsort(codes[order], stable=True)]


def preference_loss(better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """−log sigmoid(better − worse) of each pair: log 2 where both are equal, near 0 where `better` is much larger."""
    return torch.nn.functional.softplus(worse - better)
