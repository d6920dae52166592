"""Terms beside the policy loss: entropy, divergence from a reference, the critic's error."""

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
    """−coefficient · entropy per token.

    Args:
        batch: columns entropy, weight, each (tokens,).
        coefficient: ≥ 0. Higher: more exploration, and noise that never goes. Usual: 0–0.01.

    Returns: loss (tokens,) and policy/entropy.
    Raises: MissingColumn, if the policy gave no entropies.
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
    """coefficient · ½ (V − target)² on tokens where a target stands.

    With `clip`, V may leave V_old by that much at a time: the larger of the plain and the clipped error counts.

    Args:
        batch: columns value, value_target, value_weight, and value_old with clip, each
            (tokens,). Weights of the policy's loss change nothing here.
        coefficient: ≥ 0. Higher: the critic learns faster and, in a shared body, at the policy's cost. Usual: 0.5.
        clip: > 0. Usual: none, or 0.2 for returns of size one.

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
