"""Terms that are added to the policy loss: entropy, KL to a reference, and the critic's error."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.data import TokenBatch
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, Positive, register


@register("regularizer", "entropy", reads=("entropy", "weight"), source="arXiv 1602.01783")
def entropy(
    batch: TokenBatch, *, coefficient: NonNegative = 0.01
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Keep the entropy high: add −coefficient · entropy to the loss, per token.

    Args:
        batch: columns entropy, weight, each (tokens,).
        coefficient: ≥ 0. Higher: more exploration, and a policy that stays random. Usual: 0–0.01.

    Returns: loss (tokens,) and policy/entropy.
    Raises: MissingColumn, if the policy gives no entropy.
    """
    own = torch.where(batch["weight"] > 0, batch["entropy"], 0.0)
    return -coefficient * own, {"policy/entropy": own.detach()}


@register(
    "regularizer",
    "kl",
    reads=("logprob", "logprob_reference", "weight"),
    uses=("reference",),
    source="Schulman 2020, Approximating KL divergence",
)
def kl(
    batch: TokenBatch,
    *,
    coefficient: NonNegative = 0.01,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    cap: Positive | None = None,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Penalize the KL to the reference: coefficient · KL estimate per token.

    Args:
        batch: columns logprob, logprob_reference, weight, each (tokens,).
        coefficient: ≥ 0. Higher: the policy stays closer to the reference. Usual: 0.001–0.04.
        estimator: "k3" is never negative. "k2" has the gradient of the true KL. The mean gradient of "k1" is 0, so it
            only adds noise to a loss.
        cap: > 0, the largest k3 of a token; a token above it has no gradient. k3 grows with the ratio of the
            probabilities: for a token that is e¹⁰ times rarer under the policy than under the reference, k3 is
            2 · 10⁴. Higher: such tokens have a larger gradient. None: no cap. Usual: None, or 10, which verl always
            applies.

    Returns: loss (tokens,) and policy/kl_reference, both capped.
    Raises: MissingColumn, without a reference policy; RecipeError, for a cap with another estimator than k3.
    """
    if cap is not None and estimator != "k3":
        raise RecipeError(
            where="regularizer: kl",
            what=f"`cap: {cap:g}` applies only to the estimator k3, and `estimator` is {estimator}.",
            remedy="Leave `cap` out, or set `estimator: k3`.",
        )
    counts = batch["weight"] > 0
    reference = batch["logprob_reference"]
    ours, theirs = torch.where(counts, batch["logprob"], 0.0), torch.where(counts, reference, 0.0)
    drift = kl_estimate(ours, theirs, how=estimator, cap=cap)
    return coefficient * drift, {"policy/kl_reference": drift.detach()}


@register(
    "regularizer",
    "value",
    reads=("value", "value_target", "value_weight"),
    reads_if={"clip": ("value_old",)},
    uses=("critic",),
    source="arXiv 1707.06347",
)
def value(
    batch: TokenBatch, *, coefficient: NonNegative = 0.5, clip: Positive | None = None
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Train the critic: coefficient · ½ (V − target)² on tokens that have a target.

    With `clip`, the loss is the larger of two errors: that of V, and that of V clipped to V_old ± clip.

    Args:
        batch: columns value, value_target, value_weight, each (tokens,); with clip also value_old. The weights of the
            policy loss are not used.
        coefficient: ≥ 0. Higher: the critic learns faster; in a shared body the policy may learn worse. Usual: 0.5.
        clip: > 0, largest change of V that lowers the loss. Usual: None, or 0.2 for returns of about 1.

    Returns: loss (tokens,) and value/loss.
    Raises: MissingColumn, without a critic or targets.
    """
    now = batch["value"]
    target = batch["value_target"]
    stands = batch["value_weight"] > 0
    error = torch.where(stands, now - target, 0.0).square()
    if clip is not None:
        old = batch["value_old"]
        near = old + (now - old).clamp(-clip, clip)
        error = torch.maximum(error, torch.where(stands, near - target, 0.0).square())
    loss = 0.5 * error * batch["value_weight"]
    return coefficient * loss, {"value/loss": loss.detach()}
