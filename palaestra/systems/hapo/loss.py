"""HAPO's loss: a clipped surrogate whose advantages and clip bounds depend on the entropy of each token."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.data import TokenBatch
from palaestra.errors import RecipeError
from palaestra.registry import Fraction, NonNegative, register
from palaestra.systems.hapo.entropy_signal import entropy_scale

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Dual = Annotated[float, pydantic.Field(gt=1)]
LARGEST = 20.0  # bound on the size of a log-ratio: exp(20) is outside every clip range and still finite


@register(
    "loss",
    "hapo",
    reads=("advantage", "entropy_old", "logprob", "logprob_old", "weight"),
    frozen_minibatch=True,
    source="arXiv 2509.16591",
)
def hapo(
    batch: TokenBatch,
    *,
    low: Low = 0.2,
    high: NonNegative = 0.2,
    dual: Dual | None = 10.0,
    quantile: Fraction = 0.8,
    redistribution: Fraction = 1.0,
    clip: Fraction = 1.0,
    released_sign: bool = False,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """The clipped surrogate, with a clip range and an advantage that depend on the token's entropy signal h.

        loss                −min(ρ A', clip(ρ, 1 − low', 1 + high') A')
        h > 0, uncertain    high' = high · (1 + clip · h),   A' = A · (1 + redistribution · h) outside the neutral zone
        h ≤ 0, certain      low' = low · (1 − clip · h),     A' = A · (1 + redistribution · h) inside the neutral zone
        neutral zone        1 − low'/2 < ρ < 1 + high'/2
        signal              h of `EntropyScale`, in [−1, 1], measured over the tokens of the mini-batch

    While a certain token's ratio is near 1, its advantage is smaller; its probability may fall further than others'. An
    uncertain token whose ratio has left the neutral zone has a larger advantage; its probability may rise further. ρ is
    the ratio of the single token, since the bounds are.

    Args:
        batch: columns advantage, logprob, logprob_old, weight and entropy_old, of the policy before the update, each
            (tokens,).
        low, high: the clip range at h = 0, as in `ppo_clip`.
        dual: > 1. Where A' < 0, the loss is at most −dual · A'; None: no bound.
        quantile: the quantile of the log-entropies at which h is 0. Higher: fewer tokens count as uncertain. Usual:
            0.5–0.8.
        redistribution: in [0, 1], how much h changes advantages. With `clip` 0 too, this loss is `ppo_clip`.
        clip: in [0, 1], how much h widens the clip range.
        released_sign: use |h|, as the authors' released code does, so that no token counts as certain.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the old policy),
        policy/ratio and policy/entropy_signal.
    Raises: RecipeError, if low · (1 + clip) reaches 1; MissingColumn, without entropies; InvalidData, for an entropy
        that is negative.
    Differs from the authors' code: h is signed, as the paper's text describes it. In that code, tokens below the pivot
        get |h|, so that the rules for certain tokens never apply (`released_sign=True`).
    """
    if low * (1 + clip) >= 1:
        raise RecipeError(
            where="loss: hapo",
            what=f"the lower clip bound of certain tokens, 1 − {low:g} · (1 + {clip:g}), must be positive.",
            remedy="Lower `low` or `clip`, so that low · (1 + clip) stays below 1.",
        )
    counts = batch["weight"] > 0
    signal = _signal(batch, counts, quantile, released_sign)
    floor = 1 - low * (1 - clip * signal.clamp(max=0.0))
    ceiling = 1 + high * (1 + clip * signal.clamp(min=0.0))
    rho = torch.exp(torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0).clamp(-LARGEST, LARGEST))
    floor, ceiling = floor.to(rho.dtype), ceiling.to(rho.dtype)
    inside = (rho > 1 - (1 - floor) / 2) & (rho < 1 + (ceiling - 1) / 2)
    moved = torch.where(inside, signal <= 0, signal > 0)
    factor = torch.where(moved, 1 + redistribution * signal, 1.0).to(rho.dtype)
    advantage = batch["advantage"] * factor
    loss = -torch.minimum(rho * advantage, torch.minimum(rho, ceiling).clamp(min=floor) * advantage)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)
    risen, fallen = (advantage > 0) & (rho > ceiling), (advantage < 0) & (rho < floor)
    metrics = {
        "policy/clip_fraction": (risen | fallen),
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
        "policy/entropy_signal": signal,
    }
    return loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _signal(batch: TokenBatch, counts: Tensor, quantile: float, released_sign: bool) -> Tensor:
    """h of this batch's tokens, on the scale of its mini-batch: float64 (tokens,), 0 on masked tokens."""
    minibatch = batch if batch.minibatch is None else batch.minibatch
    measured = minibatch["entropy_old"]
    scale = entropy_scale(measured, quantile=quantile, counts=minibatch["weight"] > 0)
    own = torch.where(counts, batch["entropy_old"], 0.0)
    return torch.where(counts, scale.signal(own, released_sign=released_sign), 0.0)
