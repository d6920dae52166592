"""Policy losses per token: the clipped surrogate, GSPO, REINFORCE and behavior cloning."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate, segment_count, segment_mean
from palaestra.algebra.aggregation import unit_key
from palaestra.data import Key, TokenBatch
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, register
from palaestra.registry.clashes import Clash

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Dual = Annotated[float, pydantic.Field(gt=1)]
Ratio = Literal["token", "turn", "invocation", "trajectory"]
Form = Literal["additive", "multiplicative"]
LARGEST = 20.0  # largest absolute log-ratio: exp(20) is far outside of every clip range and still finite


@register(
    "loss",
    "ppo_clip",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    reads_if={"around=behavior": ("logprob_behavior",), "high_foreign": ("foreign?",)},
    scope={"ratio=invocation": "invocation", "ratio=trajectory": "trajectory"},
    source="arXiv 1707.06347; separate bounds 2503.14476; dual clip 1912.09729; multiplicative 2502.01600; "
    "foreign prompts 2511.10395",
    clashes=(
        Clash(
            options={"ratio": ("trajectory", "invocation")},
            has=("high_foreign",),
            why="Several rows share one ratio, so its bound cannot differ between them.",
            ways="Set `ratio` to turn or token, or leave `high_foreign` out.",
        ),
    ),
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
    """Compute PPO's clipped surrogate: −min(ρ A, clip(ρ, 1 − low, 1 + high) A) per token.

        token           ρ_u = exp(logprob_u − logprob_old_u); with weights `truncated_importance`: decoupled PPO
        turn            ρ = the product of ρ_u over the tokens of a row; "invocation" and "trajectory" likewise
        dual            where A < 0, the loss is at most −dual · A
        multiplicative  clip(ρ, 1/(1 + low), 1 + high), symmetric in the log-ratio if low = high

    The loss of a turn, an invocation or a trajectory is divided evenly among its tokens. So at ρ = 1 the gradient is
    that of REINFORCE for every `ratio`.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, trajectory, each (tokens,).
        low: in [0, 1). Higher: the probability of an action may fall faster. Usual: 0.2.
        high: ≥ 0. Higher: the probability of rare good actions may rise faster; entropy stays higher. Usual: 0.2–0.28.
        dual: > 1, bounds the loss of bad actions that became likely. None: no bound. Usual: 3–10, or None.
        ratio: the unit over which ρ is computed; an invocation is one call of one agent in one trajectory.
        form: the form of the lower bound: 1 − low ("additive") or 1/(1 + low) ("multiplicative").
        high_foreign: ≥ 0, used instead of `high` on rows that are trained with another prompt than they were sampled
            with, for instance without the advice in it. There the column `foreign` (rows,) is 1; it may be absent.
            Higher: actions that the policy would rarely have chosen itself are learned faster. Usual: 0.6–1; None:
            `high`.
        around: the denominator of ρ. "proximal": the policy at the start of the update. "behavior": the policy that
            sampled the token (column logprob_behavior (tokens,)), as in plain PPO on old data.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the
        old policy) and policy/ratio.
    Raises: ContractError, if the batch does not hold a turn, invocation or trajectory whole.
    """
    counts = batch["weight"] > 0
    old = batch["logprob_old"] if around == "proximal" else batch["logprob_behavior"]
    difference = torch.where(counts, batch["logprob"] - old, 0.0)
    share: Tensor | float = 1.0
    if ratio != "token":
        difference, share = _over_units(difference, batch, ratio)
    rho = torch.exp(difference.clamp(-LARGEST, LARGEST))
    advantage = batch["advantage"]
    floor = 1 - low if form == "additive" else 1 / (1 + low)
    ceiling = torch.full_like(rho, 1 + high)
    if high_foreign is not None and "foreign" in batch:
        ceiling = torch.where(batch["foreign"] > 0, 1 + high_foreign, ceiling)
    loss = -torch.minimum(rho * advantage, torch.minimum(rho, ceiling).clamp(min=floor) * advantage)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)
    risen = (advantage > 0) & (rho > ceiling)
    fallen = (advantage < 0) & (rho < floor)
    metrics = {
        "policy/clip_fraction": (risen | fallen),
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
    }
    return loss * share, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _over_units(difference: Tensor, batch: TokenBatch, ratio: Ratio) -> tuple[Tensor, Tensor]:
    """For each token: the log-ratio of its unit, and 1 / the number of tokens of the unit that count."""
    key = unit_key(batch, "row" if ratio == "turn" else ratio, where=f"loss: ppo_clip, ratio: {ratio}")
    total = difference.new_zeros(key.size).index_add(0, key.codes, difference)
    size = segment_count(by=key).clamp_min(1.0).to(difference.dtype)
    return total[key.codes], 1 / size[key.codes]


Level = Literal["token", "turn", "sequence"]
UNITS = {"turn": "row", "sequence": "trajectory"}


@register(
    "loss",
    "gspo",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    scope={"level=sequence": "trajectory"},
    source="arXiv 2507.18071; token form and cap: public code",
)
def gspo(
    batch: TokenBatch,
    *,
    low: Low = 3e-4,
    high: NonNegative = 4e-4,
    level: Level = "sequence",
    gradient: Literal["unit", "token"] = "unit",
    advantage_unit: Literal["token", "unit"] = "token",
    cap: Positive = 10.0,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Compute −min(s A, clip(s, 1 − low, 1 + high) A) per token; s is the geometric mean of the ratios in its unit.

        s_i  = exp( mean over the L_i tokens of unit i of (logprob_u − logprob_old_u) )
        gradient "unit"    s_u = s_i
        gradient "token"   s_u = stop(s_i) · exp(logprob_u − stop(logprob_u)), with a gradient for each token

    The spread of a product of L ratios grows with L. The spread of their geometric mean falls with L, so clip ranges as
    narrow as 3e-4 are possible. Aggregate with `sequence-mean`, so that every response counts once.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, trajectory, each (tokens,).
        low: in [0, 1). Higher: the probability of a response may fall faster. Usual: 3e-4 for responses of hundreds of
            tokens, more for short ones. The spread of log s is about 1/√L of the spread of a token's log-ratio.
        high: ≥ 0. Higher: the probability of a good response may rise faster. Usual: 4e-4.
        level: the unit: "sequence" is all tokens of a trajectory, "turn" the tokens of a row, "token" one token, as in
            `ppo_clip`.
        gradient: "unit": the gradient of s_i. "token": the authors' variant for advantages that differ inside a
            response; each token has the gradient of its own log-probability. Both are equal where a unit has one
            advantage and one weight.
        advantage_unit: "token": the advantages as given; "unit": their mean over the unit.
        cap: > 0, largest absolute log-ratio. Usual: 10; only broken samples reach it.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the old policy),
        policy/ratio, policy/spread (square of the unit's log-ratio) and policy/token_spread (square of the token's).
    Raises: ContractError, if the batch does not hold a unit whole; InvalidData, for a log-probability that is not
        finite.
    Differs from the authors' code: a log-ratio below −cap is cut too.
    """
    counts = batch["weight"] > 0
    difference = torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0)
    _refuse_non_finite(difference, counts)
    advantage, log_ratio = batch["advantage"], difference
    if level != "token":
        key = unit_key(batch, UNITS[level], where=f"loss: gspo, level: {level}")
        log_ratio = _mean(difference, key)
        if advantage_unit == "unit":
            advantage = _mean(torch.where(counts, advantage, 0.0), key)
    if gradient == "token":
        log_ratio = log_ratio.detach() + (difference - difference.detach())
    ratio = torch.exp(log_ratio.clamp(-cap, cap))
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    risen = (advantage > 0) & (ratio > 1 + high)
    fallen = (advantage < 0) & (ratio < 1 - low)
    metrics = {
        "policy/clip_fraction": risen | fallen,
        "policy/clip_fraction_high": risen,
        "policy/clip_fraction_low": fallen,
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": ratio,
        "policy/spread": log_ratio.square(),
        "policy/token_spread": difference.square(),
    }
    return loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def _mean(values: Tensor, key: Key) -> Tensor:
    """For each token, the mean over its unit; 0 if no token of the unit counts."""
    return segment_mean(values, by=key)[key.codes].to(values.dtype)


def _refuse_non_finite(difference: Tensor, counts: Tensor) -> None:
    bad = ~difference.isfinite()
    if bool(bad.any()):
        raise InvalidData(
            where="loss: gspo",
            what=f"{int(bad.sum())} of {int(counts.sum())} tokens have a log-probability that is not finite.",
            remedy="One such token spoils the ratio of its whole response. Look at the sampler: a masked or impossible "
            "token has no finite log-probability.",
        )


@register("loss", "reinforce", reads=("advantage", "logprob", "weight"), source="Williams 1992")
def reinforce(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Compute −A · logprob per token. It has no ratio, so use it for a single update on fresh experience.

    Args:
        batch: columns advantage, logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -batch["advantage"] * torch.where(batch["weight"] > 0, batch["logprob"], 0.0), {}


@register("loss", "behavior_cloning", reads=("logprob", "weight"), every_token=True, source="maximum likelihood")
def behavior_cloning(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Compute −logprob per token. Advantages are not used.

    Args:
        batch: columns logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -torch.where(batch["weight"] > 0, batch["logprob"], 0.0), {}
