"""A regularizer: stay near the reference policy. Knows two log-probabilities of each token."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch, kl_estimate
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, Positive, register


@register("regularizer", "kl", uses=("reference",), source="Schulman 2020, Approximating KL divergence")
def kl(
    batch: TokenBatch,
    *,
    coefficient: NonNegative = 0.01,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    cap: Positive | None = None,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """coefficient · KL estimate per token.

    Args:
        batch: columns logprob, reference, weight, each (tokens,).
        coefficient: ≥ 0. Higher: the policy moves less from the reference. Usual: 0.001–0.04.
        estimator: "k3" is never negative; "k2" has the gradient of the true KL; the mean gradient of "k1" is 0,
            so as a loss it does nothing but add noise.
        cap: > 0, the largest k3 of a token; beyond it a token has no gradient. k3 grows with the ratio of the
            probabilities: one token that the policy has made e¹⁰ times rarer than the reference counts 2 · 10⁴.
            Higher: such tokens pull harder. Usual: none, or 10, which verl always applies.

    Returns: loss (tokens,) and policy/kl_reference, both capped.
    Raises: MissingColumn, without a reference policy; RecipeError, for a cap of another estimator than k3.
    """
    if cap is not None and estimator != "k3":
        raise RecipeError(
            where="regularizer: kl",
            what=f"`cap: {cap:g}` is a bound of k3, and `estimator` is {estimator}.",
            remedy="Leave `cap` out, or set `estimator: k3`.",
        )
    counts = batch.weight > 0
    reference = batch.need("reference", where="regularizer: kl")
    ours, theirs = torch.where(counts, batch.logprob, 0.0), torch.where(counts, reference, 0.0)
    drift = kl_estimate(ours, theirs, how=estimator, cap=cap)
    return coefficient * drift, {"policy/kl_reference": drift.detach()}
