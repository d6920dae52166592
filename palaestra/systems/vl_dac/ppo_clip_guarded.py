"""The loss `ppo_clip_guarded`: the clipped surrogate, which clips a whole step if one of its ratios is very large."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate, segment_sum
from palaestra.data import Key, TokenBatch
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Bound = Annotated[float, pydantic.Field(gt=1)]
LARGEST = 20.0  # bound on the size of a log-ratio: exp(20) is outside every clip range and still finite


@register(
    "loss",
    "ppo_clip_guarded",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    source="arXiv 2508.04280, public code",
)
def ppo_clip_guarded(
    batch: TokenBatch, *, low: Low = 0.1, high: NonNegative = 0.1, bound: Bound = 10.0
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """The clipped surrogate per token; only its clipped term on rows in which a ratio exceeds `bound`.

        ρ_u = exp(logprob_u − logprob_old_u)        clip(ρ) = min(max(ρ, 1 − low), 1 + high)
        loss_u = −min(ρ_u A, clip(ρ_u) A);          −clip(ρ_u) A on all tokens of a row in which any ρ exceeds `bound`

    The plain minimum has no bound where A < 0: a token that became ten times as likely has ten times the gradient. With
    the guard it has no gradient, and neither have the other tokens of its step that left the clip range.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, each (tokens,).
        low: in [0, 1). Higher: the probability of an action may fall faster. Usual: 0.1–0.2.
        high: ≥ 0. Higher: the probability of rare good actions may grow faster. Usual: 0.1–0.28.
        bound: > 1. Higher: the guard applies more rarely. Usual: 10.

    Returns: loss (tokens,) and, per token, policy/clip_fraction, policy/guarded, policy/kl (k3 to the old policy) and
        policy/ratio.
    Raises: ContractError, if the batch cuts a row; InvalidData, for a log-probability that is not finite.
    Differs from the authors' code: there such a log-probability silently drops its step.
    """
    counts = batch["weight"] > 0
    difference = torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0)
    if not bool(difference.isfinite().all()):
        raise InvalidData(
            where="loss: ppo_clip_guarded",
            what=f"{int((~difference.isfinite()).sum())} of {int(counts.sum())} tokens have a log-probability that is "
            "not finite.",
            remedy="Check the policy that sampled them: a masked or impossible token has none.",
        )
    rho = torch.exp(difference.clamp(-LARGEST, LARGEST))
    guarded = _any_of_row(counts & (rho.detach() > bound), batch)
    clipped = -rho.clamp(1 - low, 1 + high) * batch["advantage"]
    loss = torch.where(guarded, clipped, torch.maximum(-rho * batch["advantage"], clipped))
    risen = (batch["advantage"] > 0) & (rho > 1 + high)
    fallen = (batch["advantage"] < 0) & (rho < 1 - low)
    metrics = {
        "policy/clip_fraction": risen | fallen,
        "policy/guarded": guarded,
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
    }
    return loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _any_of_row(marked: Tensor, batch: TokenBatch) -> Tensor:
    """Whether any token of the token's row is marked: bool (tokens,)."""
    key = Key(*compact(batch.row))
    return (segment_sum(marked, by=key) > 0)[key.codes]
