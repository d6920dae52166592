"""A weight that trains on a few segments of each group, so that trajectories with many edits do not fill the update.

Segments are drawn after advantages are computed, so that a trajectory is compared by all its rewards, whichever of its
segments are trained on.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_rank
from palaestra.data import Iteration, Key, StepTable, derive
from palaestra.data.keys import compact
from palaestra.registry import Columns, PositiveInt, register


@register("weights", "segment_sample", reads=("segment?",), writes=("weight", "counts"), source="arXiv 2510.12635")
def segment_sample(
    table: StepTable,
    iteration: Iteration,
    *,
    segments: PositiveInt = 16,
    trajectories: PositiveInt = 8,
    by: Columns = ("group",),
) -> Float[Tensor, " rows"]:
    """Give 1 to the rows of drawn segments and 0 to others; each iteration draws anew.

    In each group `trajectories` are drawn, and from all their segments `segments`, without replacement.

    Args:
        table: columns group, trajectory, agent, segment (rows,). Without a column `segment` the rows of an agent in a
            trajectory are one segment.
        segments: segments of a group. Higher: more tokens per update. Usual: 16.
        trajectories: trajectories of a group. Usual: 8, all of them.
        by: columns whose equal values make rows a group.

    Returns: float32 (rows,). A group with at most this many keeps all.
    """
    draw = torch.Generator().manual_seed(derive(iteration.seed, "segment_sample", iteration.number))
    peers, counts = table.key(*by), table.row_weight > 0
    names = ("trajectory", "agent", "segment") if "segment" in table else ("trajectory", "agent")
    kept = _drawn(table.key("trajectory"), peers, counts, trajectories, draw)
    return _drawn(table.key(*names), peers, kept, segments, draw).float()


def _drawn(units: Key, peers: Key, among: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """bool (rows,): rows of `among` whose unit is one of at most `most` units drawn from each group."""
    codes, size = compact(units.codes[among])
    group = torch.zeros(size, dtype=torch.int64).index_copy_(0, codes, peers.codes[among])
    rank = segment_rank(torch.rand(size, generator=draw), by=Key(group, peers.size))
    out = torch.zeros(len(among), dtype=torch.bool)
    out[among] = (rank < most)[codes]
    return out
