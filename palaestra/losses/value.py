"""A regularizer: the critic's values move to their targets. Knows values and targets of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.registry import NonNegative, Positive, register


@register("regularizer", "value", uses=("critic",), source="arXiv 1707.06347")
def value(
    batch: TokenBatch, *, coefficient: NonNegative = 0.5, clip: Positive | None = None
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """coefficient · ½ (V − target)² on tokens where a target stands.

    With `clip`, V may leave V_old by that much at a time: the larger of the plain and the clipped error counts.

    Args:
        batch: columns value, value_target, value_weight (None: where weight > 0), and value_old with clip, each
            (tokens,). Weights of the policy's loss change nothing here.
        coefficient: ≥ 0. Higher: the critic learns faster and, in a shared body, at the policy's cost. Usual: 0.5.
        clip: > 0. Usual: none, or 0.2 for returns of size one.

    Returns: loss (tokens,) and value/loss.
    Raises: MissingColumn, without a critic or targets.
    """
    now = batch.need("value", where="regularizer: value")
    target = batch.need("value_target", where="regularizer: value")
    stands = (batch.weight if batch.value_weight is None else batch.value_weight) > 0
    error = torch.where(stands, now - target, 0.0).square()
    if clip is not None:
        old = batch.need("value_old", where="regularizer: value")
        near = old + (now - old).clamp(-clip, clip)
        error = torch.maximum(error, torch.where(stands, near - target, 0.0).square())
    loss = 0.5 * error
    if batch.value_weight is not None:
        loss = loss * batch.value_weight
    return coefficient * loss, {"value/loss": loss.detach()}
