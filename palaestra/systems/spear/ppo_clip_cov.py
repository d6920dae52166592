"""The loss `ppo_clip_cov`: the clipped surrogate without some of the tokens that reduce entropy most."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.data import TokenBatch, derive
from palaestra.errors import RecipeError
from palaestra.registry import Fraction, NonNegative, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
LARGEST = 20.0  # bound on the size of a log-ratio: exp(20) is outside every clip range and still finite


@register(
    "loss",
    "ppo_clip_cov",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    scope="minibatch",
    source="arXiv 2505.22617; 2509.22601, public code",
)
def ppo_clip_cov(
    batch: TokenBatch,
    *,
    low: Low = 0.2,
    high: NonNegative = 0.28,
    share: Fraction = 0.02,
    lower: float = 1.0,
    upper: float = 40.0,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """The clipped surrogate, with loss 0 on a few random tokens of high covariance.

        ρ_u = exp(logprob_u − logprob_old_u)        loss_u = −min(ρ_u A_u, clip(ρ_u, 1 − low, 1 + high) A_u)
        cov_u = (A_u − mean A) · (logprob_u − mean logprob)         over the tokens of the mini-batch that count
        loss 0: among the tokens with lower < cov_u < upper and no clip, max(1, ⌊share · tokens⌋) random ones, or all

    Likely tokens with high advantages and unlikely ones with low advantages reduce entropy, in proportion to cov.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, each (tokens,), of a whole mini-batch; and `seed` for
            the random choice.
        low: in [0, 1). Higher: the probability of an action may fall faster. Usual: 0.2.
        high: ≥ 0. Higher: the probability of rare good actions may grow faster, and entropy stays higher. Usual: 0.28.
        share: in [0, 1]. Higher: entropy falls more slowly. 0 is `ppo_clip`, bit for bit. Usual: 0.02.
        lower, upper: bounds of the covariance, lower < upper. Usual: 1 and 40, or 2 and 60.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/cov_clipped, policy/covariance,
        policy/kl (k3 to the old policy) and policy/ratio.
    Raises: RecipeError, for lower ≥ upper.
    Differs from the authors' code: fresh and replayed tokens of a mini-batch have one mean.
    """
    if lower >= upper:
        raise RecipeError(
            where="loss: ppo_clip_cov",
            what=f"no covariance lies between `lower: {lower:g}` and `upper: {upper:g}`.",
            remedy="Give `lower` below `upper`, for instance 1 and 40.",
        )
    counts = batch["weight"] > 0
    rho = _ratio(batch, counts)
    loss = -torch.minimum(rho * batch["advantage"], rho.clamp(1 - low, 1 + high) * batch["advantage"])
    risen, fallen = _clipped(rho, batch["advantage"], low, high)
    batch.check_scope("minibatch", where="loss: ppo_clip_cov")
    covariance = _covariance(batch)
    cut = torch.zeros_like(counts)
    if share > 0:
        cut = _drawn(batch, covariance, low=low, high=high, share=share, bounds=(lower, upper), seed=batch.seed)
    metrics = {
        "policy/clip_fraction": risen | fallen,
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/cov_clipped": cut,
        "policy/covariance": covariance,
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
    }
    return torch.where(cut, 0.0, loss), {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _ratio(batch: TokenBatch, counts: Tensor) -> Tensor:
    difference = torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0)
    return torch.exp(difference.clamp(-LARGEST, LARGEST))


def _clipped(rho: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The tokens whose gradient the clip has set to 0 already: (risen, fallen)."""
    return (advantage > 0) & (rho > 1 + high), (advantage < 0) & (rho < 1 - low)


def _covariance(batch: TokenBatch) -> Float[Tensor, " tokens"]:
    """cov of each token that counts, 0 elsewhere; float64, without gradient."""
    counts = batch["weight"] > 0
    number = counts.double().sum().clamp_min(1.0)
    advantage = torch.where(counts, batch["advantage"].detach().double(), 0.0)
    logprob = torch.where(counts, batch["logprob"].detach().double(), 0.0)
    product = (advantage - advantage.sum() / number) * (logprob - logprob.sum() / number)
    return torch.where(counts, product, 0.0)


def _drawn(
    batch: TokenBatch,
    covariance: Tensor,
    *,
    low: float,
    high: float,
    share: float,
    bounds: tuple[float, float],
    seed: int,
) -> Bool[Tensor, " tokens"]:
    """The tokens of a mini-batch whose loss is set to 0."""
    counts = batch["weight"] > 0
    risen, fallen = _clipped(_ratio(batch, counts).detach(), batch["advantage"], low, high)
    open_ = counts & ~risen & ~fallen & (covariance > bounds[0]) & (covariance < bounds[1])
    candidates = open_.nonzero()[:, 0]
    number = max(1, int(share * int(counts.sum())))
    draw = torch.Generator().manual_seed(derive(seed, "ppo_clip_cov"))
    chosen = torch.randperm(len(candidates), generator=draw)[:number].to(candidates.device)
    out = torch.zeros_like(counts)
    out[candidates[chosen]] = True
    return out
