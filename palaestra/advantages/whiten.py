"""A filter: advantages with mean 0 and variance 1 over the response tokens of the batch."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.data import whiten as whiten_units
from palaestra.registry import register


@register("advantage", "whiten", source="common practice")
def whiten(table: StepTable, advantage: Float[Tensor, " units"]) -> Float[Tensor, " tokens"]:
    """(A − mean of A) / sqrt(variance of A + 1e-8) over the tokens of rows that weigh.

    Args:
        table: column token_count (rows,).
        advantage: (rows,) or (tokens,).

    Returns: float32 (tokens,).
    Raises: InvalidData, for fewer than 2 tokens.
    """
    return whiten_units(table.per_token(advantage), weight=table.per_token(table.weight))
