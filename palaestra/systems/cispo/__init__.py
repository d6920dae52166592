"""CISPO, from MiniMax-M1 (arXiv 2506.13585), addresses several updates on one rollout. PPO's clip removes the
gradient of tokens whose probability has changed much, and these are often the rare tokens that decide how the
reasoning goes on. CISPO clips the importance weight, treats it as a constant and multiplies it with the REINFORCE
term, so every token keeps a gradient of bounded weight. By default only the upper bound is set, as in the paper. As
in public code, the log-ratio is also kept in a finite range. This file is the loss; the estimator is `grpo` in
`palaestra/parts/estimators.py`. The model and the training system of MiniMax-M1 are not here.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.data import TokenBatch
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, register

High = Annotated[float, pydantic.Field(gt=-1)]
LARGEST = 20.0  # bound of |log-ratio|: exp(20) is far beyond any clip and still finite


@register(
    "loss",
    "cispo",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    source="arXiv 2506.13585; clamp of the log-ratio: public code",
)
def cispo(
    batch: TokenBatch, *, high: High = 2.0, low: NonNegative | None = None
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−w A logprob per token, with w the ratio to the old policy, clipped and without gradient.

        w_u = stop( clip(ρ_u, 1 − low, 1 + high) )          ρ_u = exp(logprob_u − logprob_old_u)

    This is REINFORCE with a truncated importance weight that is computed again at every update; at ρ = 1 it is
    `reinforce`. Where the clipped surrogate has no gradient, as on a rare token that has become more likely, this loss
    keeps one with a bounded weight.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, each (tokens,).
        high: > −1. Higher: less bias, more variance from tokens that became more likely. Usual: 0.2–7; tune it, it
            replaces the clip range.
        low: ≥ 0; values from 1 on set no bound. Lower: tokens that became rare keep a larger weight. None: no lower
            bound, as published.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (tokens without gradient), policy/weight_clipped
        (tokens whose weight is clipped), policy/surrogate (−w A; the loss itself cannot be compared with other losses),
        policy/kl (k3 to the old policy) and policy/ratio.
    Raises: InvalidData, for a log-probability that is not finite.
    """
    counts = batch["weight"] > 0
    logprob = torch.where(counts, batch["logprob"], 0.0)
    difference = torch.where(counts, batch["logprob"].detach() - batch["logprob_old"], 0.0)
    if not bool(difference.isfinite().all()):
        raise InvalidData(
            where="loss: cispo",
            what=f"{int((~difference.isfinite()).sum())} of {int(counts.sum())} tokens have a log-probability that is "
            "not finite.",
            remedy="Check the sampler: a masked or impossible token has no finite log-probability.",
        )
    ratio = torch.exp(difference.clamp(-LARGEST, LARGEST))
    weight = ratio.clamp(min=None if low is None else 1 - low, max=1 + high)
    metrics = {
        "policy/clip_fraction": (weight == 0) & (batch["advantage"] != 0),
        "policy/weight_clipped": weight != ratio,
        "policy/surrogate": -weight * batch["advantage"],
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": ratio,
    }
    return -weight * batch["advantage"] * logprob, {name: value.to(logprob.dtype) for name, value in metrics.items()}
