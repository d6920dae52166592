"""The clipped surrogate: improve the policy, but only near where the experience came from.

Knows log-probabilities and advantages of tokens. Knows no model and no estimator.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import TokenBatch, kl_estimate, segment_count
from palaestra.data.tokens import unit_key
from palaestra.registry import NonNegative, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Dual = Annotated[float, pydantic.Field(gt=1)]
Ratio = Literal["token", "turn", "invocation", "trajectory"]
Form = Literal["additive", "multiplicative"]
LARGEST = 20.0  # of a log-ratio's size: exp(20) is far outside any clip and still finite


@register(
    "loss",
    "ppo_clip",
    source="arXiv 1707.06347; separate bounds 2503.14476; dual clip 1912.09729; multiplicative 2502.01600; "
    "foreign prompts 2511.10395",
)
def ppo_clip(
    batch: TokenBatch,
    *,
    low: Low = 0.2,
    high: NonNegative = 0.2,
    dual: Dual | None = None,
    ratio: Ratio = "token",
    form: Form = "additive",
    high_foreign: NonNegative | None = None,
    around: Literal["proximal", "behavior"] = "proximal",
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−min(ρ A, clip(ρ, 1 − low, 1 + high) A) per token.

        token           ρ_u = exp(logprob_u − proximal_u); times `truncated_importance` this is decoupled PPO
        turn            ρ = the product of ρ_u over the tokens of a row; likewise "invocation", "trajectory"
        dual            where A < 0, the loss is at most −dual · A
        multiplicative  clip(ρ, 1/(1 + low), 1 + high), symmetric in the log-ratio where low = high

    The loss of a turn, call or trajectory is spread evenly over its tokens, so that at ρ = 1 the gradient is
    that of REINFORCE at every level.

    Args:
        batch: columns advantage, logprob, proximal, weight, row, trajectory, each (tokens,).
        low: in [0, 1). Higher: actions may become rarer faster. Usual: 0.2.
        high: ≥ 0. Higher: rare good actions may grow faster, entropy stays higher. Usual: 0.2–0.28.
        dual: > 1, bounds the loss of bad actions that became likely. Usual: 3–10, or none.
        ratio: over what ρ runs; an invocation is one call of one agent in one trajectory.
        form: how `low` bounds ρ from below.
        high_foreign: ≥ 0, in place of `high` on rows whose prompt is not the one they were sampled with (column
            `foreign` (rows,) is 1 there; absent: none is), such as prompts from which advice was taken out. Higher:
            what the policy would rarely have done by itself is learned faster. Usual: 0.6–1; None: `high`.
        around: which policy ρ compares with and the clip lies around: the one at the start of the update, or, as
            plain PPO on old data has it, what really sampled the token (column behavior (tokens,)).

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the
        proximal policy) and policy/ratio.
    Raises: ContractError, if a turn or trajectory is cut by the batch.
    """
    counts = batch.weight > 0
    old = batch.proximal if around == "proximal" else batch.need("behavior", where="loss: ppo_clip, around: behavior")
    difference = torch.where(counts, batch.logprob - old, 0.0)
    share: Tensor | float = 1.0
    if ratio != "token":
        difference, share = _over_units(difference, batch, ratio)
    rho = torch.exp(difference.clamp(-LARGEST, LARGEST))
    advantage = batch.advantage
    floor = 1 - low if form == "additive" else 1 / (1 + low)
    ceiling = torch.full_like(rho, 1 + high)
    if high_foreign is not None and batch.foreign is not None:
        ceiling = torch.where(batch.foreign > 0, 1 + high_foreign, ceiling)
    loss = -torch.minimum(rho * advantage, torch.minimum(rho, ceiling).clamp(min=floor) * advantage)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)
    risen = (advantage > 0) & (rho > ceiling)
    fallen = (advantage < 0) & (rho < floor)
    metrics = {
        "policy/clip_fraction": (risen | fallen),
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/kl": torch.where(counts, kl_estimate(batch.logprob.detach(), batch.proximal), 0.0),
        "policy/ratio": rho,
    }
    return loss * share, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _over_units(difference: Tensor, batch: TokenBatch, ratio: Ratio) -> tuple[Tensor, Tensor]:
    """Log-ratio of each token's turn or trajectory, and one over the number of its tokens that count."""
    key = unit_key(batch, "row" if ratio == "turn" else ratio, where=f"loss: ppo_clip, ratio: {ratio}")
    total = difference.new_zeros(key.size).index_add(0, key.codes, difference)
    size = segment_count(by=key).clamp_min(1.0).to(difference.dtype)
    return total[key.codes], 1 / size[key.codes]
