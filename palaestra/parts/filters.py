"""Filters that change the advantages of an estimator: center, whiten, clip."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import whiten as whiten_units
from palaestra.data import StepTable
from palaestra.registry import Positive, register


@register("advantage", "center", reads=(), writes=("advantage",), source="common practice")
def center(table: StepTable, advantage: Float[Tensor, " units"]) -> Float[Tensor, " units"]:
    """Subtract the mean advantage over rows, or over tokens if the estimator gave tokens. Padding does not count.

    Args:
        advantage: (rows,) or (tokens,).

    Returns: float32, in the shape of `advantage`; 0 on padding.
    """
    counts = table.row_weight > 0
    if len(advantage) != len(table):
        counts = counts[table.token_row]
    mean = advantage[counts].double().sum() / counts.sum().clamp_min(1)
    return torch.where(counts, advantage - mean, 0.0).float()


@register("advantage", "clip_advantage", reads=(), writes=("advantage",), source="common practice")
def clip_advantage(
    table: StepTable, advantage: Float[Tensor, " units"], *, bound: Positive = 5.0
) -> Float[Tensor, " units"]:
    """Clip advantages: min(max(A, −bound), bound).

    Args:
        advantage: (rows,) or (tokens,).
        bound: > 0. Higher: fewer advantages change. Lower: outliers from groups with a tiny deviation count less.
            Usual: 5.

    Returns: float32, in the shape of `advantage`.
    """
    return advantage.clamp(-bound, bound)


@register("advantage", "whiten", reads=(), writes=("advantage",), source="common practice")
def whiten(table: StepTable, advantage: Float[Tensor, " units"]) -> Float[Tensor, " tokens"]:
    """Standardize advantages over tokens, without padding: (A − mean of A) / sqrt(variance of A + 1e-8).

    Args:
        table: column token_count (rows,).
        advantage: (rows,) or (tokens,).

    Returns: float32 (tokens,).
    Raises: InvalidData, for fewer than 2 tokens.
    """
    return whiten_units(table.per_token(advantage), weight=table.per_token(table.row_weight))
