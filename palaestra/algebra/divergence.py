"""Estimates of the Kullback-Leibler divergence from log-probabilities per token."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor


def kl_estimate(
    logprob: Float[Tensor, " tokens"],
    reference: Float[Tensor, " tokens"],
    *,
    how: Literal["k1", "k2", "k3"] = "k3",
    cap: float | None = None,
) -> Float[Tensor, " tokens"]:
    """Estimate KL(policy ‖ reference) at each token that the policy sampled. With d = reference − logprob:

    k1 = −d          unbiased, may be negative
    k2 = d² / 2      biased, low variance
    k3 = eᵈ − d − 1  unbiased, never negative, without an upper bound: 2 · 10⁴ at d = 10, infinite in float32 at 89

    Args:
        cap: the largest k3; a token beyond it has no gradient. None: no cap, as in the metric `policy/kl` of the
            losses and in the alignment of `dual_branch`. k1 and k2 are never capped.
    """
    difference = reference - logprob
    if how == "k1":
        return -difference
    if how == "k2":
        return difference.square() / 2
    if cap is None:
        return torch.exp(difference) - difference - 1
    small = difference.clamp(max=math.log1p(cap) + 2)  # k3 is above the cap there already, and exp cannot overflow
    return (torch.exp(small) - small - 1).clamp(max=cap)
