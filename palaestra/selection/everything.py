"""The neutral selection: every row stays."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import register


@register("selection", "all")
def everything(table: StepTable) -> Bool[Tensor, " rows"]:
    """True for each row: bool (rows,)."""
    return torch.ones(len(table), dtype=torch.bool)
