"""The plain policy gradient. Knows log-probabilities and advantages of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.registry import register


@register("loss", "reinforce", source="Williams 1992")
def reinforce(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−A · logprob per token; right for one update on fresh experience, since it has no ratio.

    Args:
        batch: columns advantage, logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -batch.advantage * torch.where(batch.weight > 0, batch.logprob, 0.0), {}
