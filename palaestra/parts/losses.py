"""Policy losses per token: the clipped surrogate, GSPO, REINFORCE and behavior cloning."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate, segment_count, segment_mean
from palaestra.algebra.aggregation import unit_key
from palaestra.clashes import Clash
from palaestra.data import Key, TokenBatch
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Dual = Annotated[float, pydantic.Field(gt=1)]
Ratio = Literal["token", "turn", "invocation", "trajectory"]
Form = Literal["additive", "multiplicative"]
LARGEST = 20.0  # of a log-ratio's size: exp(20) is far outside any clip and still finite


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
            why="One ratio for many rows cannot have another bound in some of them.",
            ways="Set ratio: turn or token, or leave `high_foreign` out.",
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
    """−min(ρ A, clip(ρ, 1 − low, 1 + high) A) per token.

        token           ρ_u = exp(logprob_u − logprob_old_u); times `truncated_importance` this is decoupled PPO
        turn            ρ = the product of ρ_u over the tokens of a row; likewise "invocation", "trajectory"
        dual            where A < 0, the loss is at most −dual · A
        multiplicative  clip(ρ, 1/(1 + low), 1 + high), symmetric in the log-ratio where low = high

    The loss of a turn, call or trajectory is spread evenly over its tokens, so that at ρ = 1 the gradient is
    that of REINFORCE at every level.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, trajectory, each (tokens,).
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
        old policy) and policy/ratio.
    Raises: ContractError, if a turn or trajectory is cut by the batch.
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
    """Log-ratio of each token's turn or trajectory, and one over the number of its tokens that count."""
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
    """−min(s A, clip(s, 1 − low, 1 + high) A) per token, s the geometric mean of the ratios in the token's unit.

        s_i  = exp( mean over the L_i tokens of unit i of (logprob_u − logprob_old_u) )
        gradient "unit"    s_u = s_i
        gradient "token"   s_u = stop(s_i) · exp(logprob_u − stop(logprob_u)), each token's own gradient

    A plain product of L ratios has a spread that grows with L; their geometric mean has one that falls, and clips
    as narrow as 3e-4 make sense. Aggregate with `sequence-mean`: every response counts once.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, trajectory, each (tokens,).
        low: in [0, 1). Higher: responses may become rarer faster. Usual: 3e-4 for responses of hundreds of tokens,
            more for short ones: the spread of log s is about 1/√L of that of a token's log-ratio.
        high: ≥ 0. Higher: good responses may grow faster. Usual: 4e-4.
        level: what a unit is: "sequence" all tokens of a trajectory, "turn" those of a row, "token" each one, which
            is `ppo_clip`.
        gradient: "unit": that of the formula; "token": as the authors' variant for advantages that differ inside a
            response, where each token follows its own. Equal where a unit has one advantage and one weight.
        advantage_unit: "token": the advantage as given; "unit": its mean over the unit first.
        cap: > 0, of the log-ratio's size. Usual: 10; only broken samples reach it.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the old
        policy), policy/ratio, and the squares of the unit's and of the token's log-ratio, policy/spread and
        policy/token_spread.
    Raises: ContractError, if a unit is cut by the batch; InvalidData, for a log-probability that is not finite.
    Differs from the authors' code: a log-ratio is cut at −cap too.
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
    """The mean over each token's unit, on each of its tokens; a unit of which no token counts gives 0."""
    return segment_mean(values, by=key)[key.codes].to(values.dtype)


def _refuse_non_finite(difference: Tensor, counts: Tensor) -> None:
    bad = ~difference.isfinite()
    if bool(bad.any()):
        raise InvalidData(
            where="loss: gspo",
            what=f"{int(bad.sum())} of {int(counts.sum())} tokens have a log-probability that is not finite.",
            remedy="One such token would spoil its whole response. Look at what sampled them: a masked or impossible "
            "token has none.",
        )


@register("loss", "reinforce", reads=("advantage", "logprob", "weight"), source="Williams 1992")
def reinforce(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−A · logprob per token; right for one update on fresh experience, since it has no ratio.

    Args:
        batch: columns advantage, logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -batch["advantage"] * torch.where(batch["weight"] > 0, batch["logprob"], 0.0), {}


@register("loss", "behavior_cloning", reads=("logprob", "weight"), every_token=True, source="maximum likelihood")
def behavior_cloning(batch: TokenBatch) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """−logprob per token; advantages are not read.

    Args:
        batch: columns logprob, weight, each (tokens,).

    Returns: loss (tokens,); no metrics.
    """
    return -torch.where(batch["weight"] > 0, batch["logprob"], 0.0), {}
