"""A filter: advantages whose mean over the rows of the batch is 0."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import register


@register("advantage", "center", source="common practice")
def center(table: StepTable, advantage: Float[Tensor, " units"]) -> Float[Tensor, " units"]:
    """A − mean of A over the units that weigh; a unit is a row, or a token if the estimator gave tokens.

    Args:
        advantage: (rows,) or (tokens,).

    Returns: float32, as `advantage`; 0 on padding.
    """
    counts = table.weight > 0
    if len(advantage) != len(table):
        counts = counts[table.token_row]
    mean = advantage[counts].double().sum() / counts.sum().clamp_min(1)
    return torch.where(counts, advantage - mean, 0.0).float()
