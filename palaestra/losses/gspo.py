"""GSPO: the ratio of a whole response, per token of its length, so that clipping keeps or drops whole responses.

Knows log-probabilities, advantages and which unit a token belongs to. Knows no model and no estimator.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Key, TokenBatch, kl_estimate, segment_mean
from palaestra.data.tokens import unit_key
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, register

Low = Annotated[float, pydantic.Field(ge=0, lt=1)]
Level = Literal["token", "turn", "sequence"]
UNITS = {"turn": "row", "sequence": "trajectory"}


@register("loss", "gspo", source="arXiv 2507.18071; token form and cap: public code")
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

        s_i  = exp( mean over the L_i tokens of unit i of (logprob_u − proximal_u) )
        gradient "unit"    s_u = s_i
        gradient "token"   s_u = stop(s_i) · exp(logprob_u − stop(logprob_u)), each token's own gradient

    A plain product of L ratios has a spread that grows with L; their geometric mean has one that falls, and clips
    as narrow as 3e-4 make sense. Aggregate with `sequence-mean`: every response counts once.

    Args:
        batch: columns advantage, logprob, proximal, weight, row, trajectory, each (tokens,).
        low: in [0, 1). Higher: responses may become rarer faster. Usual: 3e-4 for responses of hundreds of tokens,
            more for short ones: the spread of log s is about 1/√L of that of a token's log-ratio.
        high: ≥ 0. Higher: good responses may grow faster. Usual: 4e-4.
        level: what a unit is: "sequence" all tokens of a trajectory, "turn" those of a row, "token" each one, which
            is `ppo_clip`.
        gradient: "unit": that of the formula; "token": as the authors' variant for advantages that differ inside a
            response, where each token follows its own. Equal where a unit has one advantage and one weight.
        advantage_unit: "token": the advantage as given; "unit": its mean over the unit first.
        cap: > 0, of the log-ratio's size. Usual: 10; only broken samples reach it.

    Returns: loss (tokens,) and, per token, policy/clip_fraction (…_high, …_low), policy/kl (k3 to the proximal
        policy), policy/ratio, and the squares of the unit's and of the token's log-ratio, policy/spread and
        policy/token_spread.
    Raises: ContractError, if a unit is cut by the batch; InvalidData, for a log-probability that is not finite.
    Differs from the authors' code: a log-ratio is cut at −cap too.
    """
    counts = batch.weight > 0
    difference = torch.where(counts, batch.logprob - batch.proximal, 0.0)
    _refuse_non_finite(difference, counts)
    advantage, log_ratio = batch.advantage, difference
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
        "policy/kl": torch.where(counts, kl_estimate(batch.logprob.detach(), batch.proximal), 0.0),
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
