"""A clipped surrogate in which a token above the upper bound keeps a bounded gradient."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.data import TokenBatch
from palaestra.registry import Fraction, NonNegative, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
LARGEST = 20.0  # bound of |log-ratio|: exp(20) is far outside any clip and still finite


@register(
    "loss",
    "ppo_clip_kept",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    source="arXiv 2510.14545, public code",
)
def ppo_clip_kept(
    batch: TokenBatch, *, low: Low = 0.2, high: NonNegative = 0.28, keep: Fraction = 1.0
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−min(ρ A, clip(ρ, 1 − low, c) A) per token, with a bound c that has the value 1 + high and a gradient.

        ρ = exp(logprob − logprob_old)        c = (1 + high) · (1 + keep · (ρ / sg[ρ] − 1))        sg: no gradient

    Where A > 0 and ρ > 1 + high the plain clip gives a token no gradient; rare, uncertain tokens reach that bound
    first. Here the loss of such a token has the gradient −keep · (1 + high) · A with respect to its log-probability:
    the same as at the bound, and not 0. For tokens with A < 0 and for the lower bound it is the plain clip.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, each (tokens,).
        low: in [0, 1). Higher: actions may become rarer faster. Usual: 0.2.
        high: ≥ 0. Higher: rare good actions may grow faster. Usual: 0.2–0.28.
        keep: share of the gradient that is kept. 0 is the plain clip. Usual: 1.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/zero_gradient_positive (tokens
        with A > 0 that have no gradient), policy/kl (k3 to the old policy) and policy/ratio.
    """
    counts = batch["weight"] > 0
    difference = torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0)
    rho = torch.exp(difference.clamp(-LARGEST, LARGEST))
    ceiling = (1 + high) * (1 + keep * (rho / rho.detach() - 1))
    advantage = batch["advantage"]
    loss = -torch.minimum(rho * advantage, torch.minimum(rho, ceiling).clamp(min=1 - low) * advantage)
    risen = (advantage > 0) & (rho > ceiling)
    fallen = (advantage < 0) & (rho < 1 - low)
    metrics = {
        "policy/clip_fraction": risen | fallen,
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/zero_gradient_positive": risen & (keep == 0),
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
    }
    return loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}
