"""A regularizer: keep the policy undecided. Knows the entropy of each token's distribution."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.registry import NonNegative, register


@register("regularizer", "entropy", source="arXiv 1602.01783")
def entropy(
    batch: TokenBatch, *, coefficient: NonNegative = 0.01
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−coefficient · entropy per token.

    Args:
        batch: columns entropy, weight, each (tokens,).
        coefficient: ≥ 0. Higher: more exploration, and noise that never goes. Usual: 0–0.01.

    Returns: loss (tokens,) and policy/entropy.
    Raises: MissingColumn, if the policy gave no entropies.
    """
    own = torch.where(batch.weight > 0, batch.need("entropy", where="regularizer: entropy"), 0.0)
    return -coefficient * own, {"policy/entropy": own.detach()}
