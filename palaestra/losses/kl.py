"""A regularizer: stay near the reference policy. Knows two log-probabilities of each token."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch, kl_estimate
from palaestra.registry import NonNegative, register


@register("regularizer", "kl", uses=("reference",), source="Schulman 2020, Approximating KL divergence")
def kl(
    batch: TokenBatch, *, coefficient: NonNegative = 0.01, estimator: Literal["k1", "k2", "k3"] = "k3"
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """coefficient · KL estimate per token.

    Args:
        batch: columns logprob, reference, weight, each (tokens,).
        coefficient: ≥ 0. Higher: the policy moves less from the reference. Usual: 0.001–0.04.
        estimator: "k3" is never negative; "k2" has the gradient of the true KL; the mean gradient of "k1" is 0,
            so as a loss it does nothing but add noise.

    Returns: loss (tokens,) and policy/kl_reference.
    Raises: MissingColumn, without a reference policy.
    """
    counts = batch.weight > 0
    reference = batch.need("reference", where="regularizer: kl")
    drift = kl_estimate(torch.where(counts, batch.logprob, 0.0), torch.where(counts, reference, 0.0), how=estimator)
    return coefficient * drift, {"policy/kl_reference": drift.detach()}
