"""Factors for tokens that another policy drew."""

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
    """1 for each row: float32 (rows,)."""
    return torch.ones(len(table))


LARGEST = 50.0  # of a log-ratio: exp(50) is beyond any cap and still finite


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
    """w = min(old probability / sampled probability, cap), a constant factor of the loss.

        token       w_u = exp(logprob_old_u − logprob_behavior_u)
        sequence    the product of w_u over the sequence
        geometric   their geometric mean

    Args:
        table: columns logprob_old, of the policy at the start of the update, and logprob_behavior, of what
            really sampled the token, each (tokens,).
        cap: > 0. Higher: less bias, more variance. Usual: token 1.5–5, sequence 2–10.
        level: over what the ratio runs.
        mode: "truncate" cuts at `cap`; "mask" gives 1 inside [low, cap] and 0 outside. What is rejected still counts
            in the denominators of the aggregation.
        low: lower bound of "mask"; None: 1 / cap.
        veto: a sequence is rejected whole if one of its tokens has become rarer by this factor. Usual: 1e-4, or none.
        normalize: divide by the mean over all tokens judged, so that the step is as long as without the part.
        by: what a sequence is.

    Returns: float32 (tokens,); 1 for tokens that no trained policy judges.
    Raises: MissingColumn, if a column is absent; InvalidData, for a token with one log-probability of the
        two, or a positive one; RecipeError, for low > cap.
    """
    bottom = 1 / cap if low is None else low
    if bottom > cap:
        raise RecipeError(
            where="weights: truncated_importance",
            what=f"the lower bound {bottom:g} is above `cap: {cap:g}`.",
            remedy="Give `low` below `cap`; with a cap below 1 it must be given.",
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
    """old − sampled, float64 (tokens,), and which tokens a trained policy judges."""
    sampled, old = table["logprob_behavior"].double(), table["logprob_old"].double()
    judged = (table.row_weight[table.token_row] > 0) & ~old.isnan()
    both = torch.cat([sampled[judged], old[judged]])
    if not bool(both.isfinite().all()):
        raise InvalidData(
            where="weights: truncated_importance",
            what="a trained token lacks the log-probability under what sampled it.",
            remedy="Old weights cannot be guessed; leave the part out for policies whose sampler gives none.",
        )
    if bool((both > 1e-4).any()):
        raise InvalidData(
            where="weights: truncated_importance", what=f"a log-probability is positive: {float(both.max()):g}."
        )
    return torch.where(judged, old - sampled, 0.0), judged
