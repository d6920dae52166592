"""A price for a trajectory that ends at a limit: of turns, of tokens, or of the context."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import NonNegative, register


@register("reward", "resource_penalty", reads=("truncated?",), writes=("reward",), source="arXiv 2510.12635")
def resource_penalty(table: StepTable, *, penalty: NonNegative = 0.1) -> Float[Tensor, " rows"]:
    """Set the return of a trajectory that ended at a limit to −penalty; the others keep their rewards.

    The trajectory's other rewards are set to 0: returns are 1 for success, 0 for a failure within the limits and −0.1
    for reaching a limit, as published.

    Args:
        table: columns trajectory, turn, reward and truncated, (rows,); truncated marks an agent's last row. Without
            that column no trajectory ended at a limit.
        penalty: ≥ 0. Higher: agents stop earlier to stay within the limit. Usual: 0.1.

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
