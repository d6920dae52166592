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
LARGEST = 20.0  # of a log-ratio's size: exp(20) is far beyond any bound and still finite


@register(
    "loss",
    "cispo",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    source="arXiv 2506.13585; clamp of the log-ratio: public code",
)
def cispo(
    batch: TokenBatch, *, high: High = 2.0, low: NonNegative | None = None
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−w A logprob per token, w the ratio to the old policy, clipped and without gradient.

        w_u = stop( clip(ρ_u, 1 − low, 1 + high) )          ρ_u = exp(logprob_u − logprob_old_u)

    REINFORCE with a truncated importance weight which is renewed at every update: at ρ = 1 it is `reinforce`. Where
    the clipped surrogate stops, as on a rare token that has become likelier, this one goes on with a bounded weight.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, each (tokens,).
        high: > −1. Higher: less bias, more variance from tokens that became likelier. Usual: 0.2–7; it takes the
            place of a clip range and is searched for.
        low: ≥ 0; from 1 on it bounds nothing. Lower: tokens that became rare keep pulling. None: no lower bound, as
            published.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (tokens without gradient: none), policy/weight_clipped
        (tokens with a bounded weight), policy/surrogate (−w A; the loss itself compares with no other loss),
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
            remedy="Look at what sampled them: a masked or impossible token has none.",
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
