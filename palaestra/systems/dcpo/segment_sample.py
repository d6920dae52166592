"""A few segments of each group: long trajectories with many memory edits do not fill the whole update.

Knows groups, trajectories and segments. Knows nothing of rewards or models. It chooses after advantages were made, so
that a trajectory is compared by all its rewards, whichever of its segments are trained on.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_rank
from palaestra.data import Key, StepTable, derive
from palaestra.data.iteration import Iteration
from palaestra.data.keys import compact
from palaestra.registry import Columns, PositiveInt, register


@register("weights", "segment_sample", writes=("weight", "counts"), source="arXiv 2510.12635")
class SegmentSample:
    """1 on the rows of chosen segments, 0 on others; another choice in each iteration.

    Of each group `trajectories` are drawn, and of all their segments `segments`, without replacement.

    Args:
        segments: of a group. Higher: more tokens an update. Usual: 16.
        trajectories: of a group. Usual: 8, all of them.
        by: columns that a group agrees in.

    Called with a table, columns group, trajectory, agent, segment (rows,), it returns float32 (rows,). A group that
    has no more keeps all; without a column `segment` a trajectory is one segment.
    """

    def __init__(self, *, segments: PositiveInt = 16, trajectories: PositiveInt = 8, by: Columns = ("group",)) -> None:
        self._segments, self._trajectories, self._by = segments, trajectories, by

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        draw = torch.Generator().manual_seed(derive(iteration.seed, "segment_sample", iteration.number))
        peers, counts = table.key(*self._by), table.row_weight > 0
        names = ("trajectory", "agent", "segment") if "segment" in table else ("trajectory", "agent")
        kept = _drawn(table.key("trajectory"), peers, counts, self._trajectories, draw)
        return _drawn(table.key(*names), peers, kept, self._segments, draw).float()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what is drawn depends on seed and iteration only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def _drawn(units: Key, peers: Key, among: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """bool (rows,): rows `among` whose unit is one of at most `most` drawn from those of its peers."""
    codes, size = compact(units.codes[among])
    group = torch.zeros(size, dtype=torch.int64).index_copy_(0, codes, peers.codes[among])
    rank = segment_rank(torch.rand(size, generator=draw), by=Key(group, peers.size))
    out = torch.zeros(len(among), dtype=torch.bool)
    out[among] = (rank < most)[codes]
    return out
