"""Behavior cloning: make the recorded tokens likely. Knows log-probabilities only."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.registry import register


@register("loss", "behavior_cloning", uses=("every_token",), source="maximum likelihood")
def behavior_cloning(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−logprob per token; advantages are not read.

    Args:
        batch: columns logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -torch.where(batch.weight > 0, batch.logprob, 0.0), {}
