"""A filter: advantages within bounds."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import Positive, register


@register("advantage", "clip_advantage", source="common practice")
def clip_advantage(
    table: StepTable, advantage: Float[Tensor, " units"], *, bound: Positive = 5.0
) -> Float[Tensor, " units"]:
    """min(max(A, −bound), bound).

    Args:
        advantage: (rows,) or (tokens,).
        bound: > 0. Higher: rarer intervention. Lower: outliers of tiny deviations count less. Usual: 5.

    Returns: float32, as `advantage`.
    """
    return advantage.clamp(-bound, bound)
