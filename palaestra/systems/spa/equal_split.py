"""The reward `equal_split`: every step of an episode gets the same share of its return."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_count, segment_sum
from palaestra.data import Key, StepTable
from palaestra.registry import Columns, register


@register("reward", "equal_split", reads=(), writes=("reward",), source="arXiv 2505.20732, comparison")
def equal_split(table: StepTable, *, by: Columns = ("trajectory",)) -> Float[Tensor, " rows"]:
    """R / K on each of a trajectory's K steps; the return does not change.

    Args:
        table: columns trajectory, reward, each (rows,).
        by: columns whose equal values mark the steps that share; ("trajectory", "agent") splits each agent's return
            over its own steps.

    Returns: float32 (rows,), 0 on padding.
    """
    key = table.key(*by)
    steps = Key(key.codes, key.size, key.names, (key.weights > 0).double())
    share = segment_sum(table["reward"], by=steps) / segment_count(by=steps).clamp_min(1.0)
    return torch.where(table.row_weight > 0, share[key.codes], 0.0).float()
