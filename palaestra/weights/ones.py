"""The neutral weight: every token counts once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import register


@register("weights", "ones")
def ones(table: StepTable) -> Float[Tensor, " rows"]:
    """1 for each row: float32 (rows,)."""
    return torch.ones(len(table))
