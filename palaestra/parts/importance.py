"""Importance weights, for tokens that another policy sampled."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_mean, segment_sum
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, Positive, register


@register("weights", "ones", reads=(), writes=("weight",))
def ones(table: StepTable) -> Float[Tensor, " rows"]:
    """Give every row the weight 1: float32 (rows,)."""
    return torch.ones(len(table))


LARGEST = 50.0  # largest log-ratio: exp(50) is above every cap and still finite


@register(
    "weights",
    "truncated_importance",
    reads=("logprob_behavior", "logprob_old"),
    writes=("weight",),
    source="public documentation of truncated importance sampling, 2025; arXiv 2505.24298",
)
def truncated_importance(
    table: StepTable,
    *,
    cap: Positive = 2.0,
    level: Literal["token", "sequence", "geometric"] = "token",
    mode: Literal["truncate", "mask"] = "truncate",
    low: Positive | None = None,
    veto: Positive | None = None,
    normalize: bool = False,
    by: Columns = ("trajectory",),
) -> Float[Tensor, " tokens"]:
    """Weight tokens by w = min(old probability / sampled probability, cap). The loss treats w as a constant.

        token       w_u = exp(logprob_old_u − logprob_behavior_u)
        sequence    the product of w_u over the sequence
        geometric   the geometric mean of w_u over the sequence

    Args:
        table: columns logprob_old, of the policy at the start of the update, and logprob_behavior, of the policy that
            sampled the token, each (tokens,).
        cap: > 0. Higher: less bias, more variance. Usual: token 1.5–5, sequence 2–10.
        level: the unit over which the ratio is computed, see above.
        mode: "truncate" limits the weight to `cap`. "mask" gives 1 if the ratio is in [low, cap], else 0. The
            denominators of the aggregation still count tokens of weight 0.
        low: lower bound of "mask"; None: 1 / cap.
        veto: a whole sequence gets weight 0 if the ratio of one of its tokens is below this. None: no veto. Usual:
            1e-4, or None.
        normalize: divide by the mean weight of all trained tokens, so that the size of a step does not change.
        by: tokens whose rows agree in these columns are a sequence.

    Returns: float32 (tokens,); 1 for padding and for tokens of policies that are not trained.
    Raises: MissingColumn, if a column is absent; InvalidData, if a token lacks one of the two log-probabilities or has
        a positive one; RecipeError, for low > cap.
    """
    bottom = 1 / cap if low is None else low
    if bottom > cap:
        raise RecipeError(
            where="weights: truncated_importance",
            what=f"the lower bound {bottom:g} is above `cap: {cap:g}`.",
            remedy="Set `low` below `cap`. If `cap` is below 1, `low` must be set.",
        )
    difference, judged = _log_ratio(table)
    own = Key(*_tokens_of(table.key(*by), table), weight=judged.double())
    rarest = torch.full((own.size,), LARGEST, dtype=difference.dtype).scatter_reduce(0, own.codes, difference, "amin")
    if level != "token":
        statistic = segment_sum if level == "sequence" else segment_mean
        difference = statistic(difference, by=own)[own.codes]
    ratio = torch.exp(difference.clamp_max(LARGEST))
    inside = ((ratio >= bottom) & (ratio <= cap)).double()
    weight = ratio.clamp_max(cap) if mode == "truncate" else inside
    if veto is not None:
        weight = torch.where(rarest[own.codes] < math.log(veto), 0.0, weight)
    if normalize:
        weight = weight / weight[judged].mean().clamp_min(1e-12)
    return torch.where(judged, weight, 1.0).float()


def _tokens_of(key: Key, table: StepTable) -> tuple[Tensor, int]:
    return key.codes[table.token_row], key.size


def _log_ratio(table: StepTable) -> tuple[Tensor, Tensor]:
    """The log-ratio old − sampled, float64 (tokens,); and which tokens belong to a trained policy, bool (tokens,)."""
    sampled, old = table["logprob_behavior"].double(), table["logprob_old"].double()
    judged = (table.row_weight[table.token_row] > 0) & ~old.isnan()
    both = torch.cat([sampled[judged], old[judged]])
    if not bool(both.isfinite().all()):
        raise InvalidData(
            where="weights: truncated_importance",
            what="a trained token has no log-probability from the policy that sampled it.",
            remedy="It cannot be computed afterwards. Leave the part out if the sampler gives no log-probabilities.",
        )
    if bool((both > 1e-4).any()):
        raise InvalidData(
            where="weights: truncated_importance", what=f"a log-probability is positive: {float(both.max()):g}."
        )
    return torch.where(judged, old - sampled, 0.0), judged
