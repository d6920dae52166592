"""Sums, means and ranks over the rows of a set, and a backward scan for returns."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from palaestra.data.keys import Key

EQUAL = 8 * 2.0**-23  # differences up to this share of the largest |value| may come from rounding in float32 sums


def segment_sum(values: Shaped[Tensor, " rows"], *, by: Key) -> Float[Tensor, " sets"]:
    """Weighted sum of each set: float64 (sets,)."""
    total = torch.zeros(by.size, dtype=torch.float64, device=by.codes.device)
    return total.index_add_(0, by.codes, values.double() * by.weights)


def segment_count(*, by: Key) -> Float[Tensor, " sets"]:
    """Total weight of each set: float64 (sets,)."""
    return torch.zeros(by.size, dtype=torch.float64, device=by.codes.device).index_add_(0, by.codes, by.weights)


def segment_mean(values: Shaped[Tensor, " rows"], *, by: Key) -> Float[Tensor, " sets"]:
    """Weighted mean of each set, 0 for a set without weight: float64 (sets,)."""
    return segment_sum(values, by=by) / segment_count(by=by).clamp_min(1e-300)


def segment_std(values: Shaped[Tensor, " rows"], *, by: Key, ddof: int = 1) -> Float[Tensor, " sets"]:
    """Deviation of each set, sqrt(Σ w (x − mean)² / (Σ w − ddof)), 0 where Σ w ≤ ddof: float64 (sets,)."""
    centered = values.double() - segment_mean(values, by=by)[by.codes]
    freedom = segment_count(by=by) - ddof
    variance = segment_sum(centered * centered, by=by) / freedom.clamp_min(1e-300)
    return torch.where(freedom > 0, variance, 0.0).sqrt()


def segment_range(values: Shaped[Tensor, " rows"], *, by: Key) -> Float[Tensor, " sets"]:
    """Largest minus smallest value of each set, over its rows of positive weight: float64 (sets,), 0 without any."""
    counts = by.weights > 0
    values, codes = values.double()[counts], by.codes[counts]
    high = values.new_full((by.size,), -torch.inf).scatter_reduce(0, codes, values, "amax")
    low = values.new_full((by.size,), torch.inf).scatter_reduce(0, codes, values, "amin")
    return torch.where(high >= low, high - low, 0.0)


def segment_equal(values: Shaped[Tensor, " rows"], *, by: Key) -> Bool[Tensor, " sets"]:
    """Whether the values of each set are equal, up to the rounding of float32 sums: bool (sets,).

        largest − smallest ≤ 8 · 2⁻²³ · largest |value|          about one part in a million; exact for whole numbers

    A sum of float32 numbers of one sign is off by at most 2⁻²³ of its size, one half from its terms and one half from
    its own rounding. So two sums that are equal in exact arithmetic differ by at most 2 · 2⁻²³ of their size, however
    many terms they have. The factor 8 leaves room for terms that are themselves results, and for terms of both signs.
    Only rows of positive weight count. A set without such rows is equal.
    """
    spread = segment_range(values, by=by)
    if not values.is_floating_point():
        return spread == 0
    size = torch.where(by.weights > 0, values.double().abs(), 0.0)
    largest = torch.zeros(by.size, dtype=torch.float64).scatter_reduce(0, by.codes, size, "amax")
    return spread <= EQUAL * largest


def segment_rank(values: Shaped[Tensor, " rows"], *, by: Key) -> Int[Tensor, " rows"]:
    """Rank of each row inside its set, 0 for the smallest value; ties keep the order of rows: int64 (rows,)."""
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(by.codes[order], stable=True)]
    size = torch.bincount(by.codes, minlength=by.size)
    start = size.cumsum(0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - start[by.codes[order]]
    return rank


def reverse_scan(values: Float[Tensor, " rows"], coefficients: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Compute y[k] = values[k] + coefficients[k] · y[k+1] from the last row to the first: float64 (rows,).

    A coefficient of 0 ends a chain, so that many chains are computed at once. The scan doubles its reach in each round:
    log₂(longest chain) vector operations and no loop over rows.
    """
    total, factor = values.double().clone(), coefficients.double().clone()
    rows = len(total)
    if rows:
        factor[-1] = 0.0
    hop = 1
    while hop < rows and bool(factor.any()):
        total[: rows - hop] += factor[: rows - hop] * total[hop:]
        factor = factor[:-hop] * factor[hop:]  # coefficients that reach beyond the last row are 0 and left out
        hop *= 2
    return total
