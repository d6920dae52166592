"""A price for running into a limit: of turns, of tokens, of the context.

Knows which trajectories were cut off. Knows nothing of which limit it was.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import NonNegative, register


@register("reward", "resource_penalty", reads=("truncated?",), writes=("reward",), source="arXiv 2510.12635")
def resource_penalty(table: StepTable, *, penalty: NonNegative = 0.1) -> Float[Tensor, " rows"]:
    """−penalty in all for a trajectory that ended at a limit; the others keep their rewards.

    What such a trajectory earned before is taken from it, so that its return is −penalty: 1 for success, 0 for
    failure within the limits and −0.1 for a violation, as published.

    Args:
        table: columns trajectory, turn, reward and truncated, (rows,); truncated marks an agent's last row. Without
            that column nothing was cut off.
        penalty: ≥ 0. Higher: agents stop earlier rather than run into a limit. Usual: 0.1.

    Returns: float32 (rows,); the penalty is on the last row.
    """
    if "truncated" not in table:
        return table["reward"]
    key = table.key("trajectory")
    struck = (table["truncated"] & (table.row_weight > 0)).double()
    cut = torch.zeros(key.size, dtype=torch.float64).index_add_(0, key.codes, struck)[key.codes] > 0
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool)
    ends[order[last]] = True
    price = torch.where(ends & (table.row_weight > 0), -penalty, 0.0)
    return torch.where(cut, price, table["reward"]).float()
