"""HAPO: the entropy of a token steers its advantage and its clip range.

Knows log-probabilities, advantages and entropies of tokens. Knows no model and no estimator.
"""

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
LARGEST = 20.0  # of a log-ratio's size: exp(20) is far outside any clip and still finite


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
    """−min(ρ A', clip(ρ, 1 − low', 1 + high') A') per token, steered by its entropy signal h in [−1, 1].

        h > 0, uncertain    high' = high · (1 + clip · h),   A' = A · (1 + redistribution · h) outside the neutral zone
        h ≤ 0, certain      low' = low · (1 − clip · h),     A' = A · (1 + redistribution · h) inside the neutral zone
        neutral zone        1 − low'/2 < ρ < 1 + high'/2
        signal              h of `EntropyScale`, measured over the tokens of the mini-batch

    So a certain token moves little while it stays near, and may become rarer faster; an uncertain one that has
    moved goes on moving, and may become likelier faster. The ratio is a token's own, since its bounds are.

    Args:
        batch: columns advantage, logprob, logprob_old, weight and entropy_old, of the policy before the update, each
            (tokens,).
        low, high: as in `ppo_clip`, at h = 0.
        dual: > 1. Where A' < 0, the loss is at most −dual · A'. Lower: unlikely bad tokens move less. None: no bound.
            Usual: 10.
        quantile: of the log-entropies, where h is 0. Higher: fewer tokens count as uncertain. Usual: 0.5–0.8.
        redistribution: in [0, 1], how much h moves advantages. 0, with clip 0, is `ppo_clip`. Usual: 1.
        clip: in [0, 1], how much h moves the bounds of the ratio. Higher: wider above for uncertain tokens, wider
            below for certain ones. Usual: 1.
        released_sign: h = |h|, as in code released with the method: no token ever counts as certain.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the
        old policy), policy/ratio and policy/entropy_signal.
    Raises: RecipeError, if low · (1 + clip) reaches 1; MissingColumn, without entropies; InvalidData, for one that is
        negative.
    Differs from the authors' code: h is signed, as the text describes it; there tokens below the pivot get |h|, so
        that the rules for certain tokens never act (`released_sign=True`).
    """
    if low * (1 + clip) >= 1:
        raise RecipeError(
            where="loss: hapo",
            what=f"the lower bound 1 − {low:g} · (1 + {clip:g}) of a certain token's ratio is not positive.",
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
    """h of this cut's tokens, measured over the mini-batch it was cut from: float64 (tokens,), 0 on masked ones."""
    minibatch = batch if batch.minibatch is None else batch.minibatch
    measured = minibatch["entropy_old"]
    scale = entropy_scale(measured, quantile=quantile, counts=minibatch["weight"] > 0)
    own = torch.where(counts, batch["entropy_old"], 0.0)
    return torch.where(counts, scale.signal(own, released_sign=released_sign), 0.0)
