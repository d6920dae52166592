"""A few segments of each group: long trajectories with many memory edits do not fill the whole update.

The choice is made after the advantages, so that a trajectory is compared by all its rewards, whichever of its segments
are trained on.
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
    """1 on the rows of chosen segments, 0 on others; another choice in each iteration.

    Of each group `trajectories` are drawn, and of all their segments `segments`, without replacement.

    Args:
        table: columns group, trajectory, agent, segment (rows,). Without a column `segment` a trajectory is one.
        segments: of a group. Higher: more tokens an update. Usual: 16.
        trajectories: of a group. Usual: 8, all of them.
        by: columns that a group agrees in.

    Returns: float32 (rows,). A group that has no more keeps all.
    """
    draw = torch.Generator().manual_seed(derive(iteration.seed, "segment_sample", iteration.number))
    peers, counts = table.key(*by), table.row_weight > 0
    names = ("trajectory", "agent", "segment") if "segment" in table else ("trajectory", "agent")
    kept = _drawn(table.key("trajectory"), peers, counts, trajectories, draw)
    return _drawn(table.key(*names), peers, kept, segments, draw).float()


def _drawn(units: Key, peers: Key, among: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """bool (rows,): rows `among` whose unit is one of at most `most` drawn from those of its peers."""
    codes, size = compact(units.codes[among])
    group = torch.zeros(size, dtype=torch.int64).index_copy_(0, codes, peers.codes[among])
    rank = segment_rank(torch.rand(size, generator=draw), by=Key(group, peers.size))
    out = torch.zeros(len(among), dtype=torch.bool)
    out[among] = (rank < most)[codes]
    return out
