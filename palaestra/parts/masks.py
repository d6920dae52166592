"""Overlong filtering: trajectories that a limit cut off are not trained on, since their result is unknown."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Iteration, Key, StepTable
from palaestra.data.trajectory import StopReason
from palaestra.registry import PositiveInt, register

Stop = Literal["environment", "max_turns", "max_tokens", "max_tool_calls", "context_overflow", "parse_error", "timeout"]
LIMITS: tuple[Stop, ...] = ("environment", "max_turns", "max_tokens", "max_tool_calls", "context_overflow", "timeout")


@register("weights", "overlong_filter", reads=(), writes=("weight", "counts"), source="arXiv 2503.14476")
def overlong_filter(
    table: StepTable, iteration: Iteration, *, stops: tuple[Stop, ...] = LIMITS, maximum: PositiveInt | None = None
) -> Float[Tensor, " rows"]:
    """Give weight 0 to all rows of a trajectory that a limit cut off, and 1 to all other rows.

    The statistics of the group still contain the trajectory's reward. The denominators of the aggregation do not count
    its tokens.

    Args:
        table: columns trajectory, token_count (rows,).
        stops: the limits that count. "environment" is the environment's own limit, where it reports `truncated`; the
            others are stop reasons of a rollout. Usual: all but "parse_error".
        maximum: a trajectory with more response tokens than this is filtered, however it ended. None: no maximum.

    Returns: float32 (rows,).
    """
    cut = [_limit(row.trajectory.stop, row.step.truncated) in stops for row in iteration.rows]
    key = table.key("trajectory")
    counted = Key(key.codes, key.size, (), (table.row_weight > 0).double())
    length = segment_sum(table["token_count"], by=counted)
    return mask_overlong(segment_sum(torch.tensor(cut), by=counted) > 0, length, maximum=maximum)[key.codes]


def mask_overlong(cut: Tensor, length: Tensor, *, maximum: int | None = None) -> Float[Tensor, " trajectories"]:
    """Returns 0 for a trajectory that was cut off or is longer than `maximum`, and 1 for others."""
    masked = cut.bool() if maximum is None else cut.bool() | (length > maximum)
    return torch.where(masked, 0.0, 1.0)


def _limit(stop: StopReason, truncated: bool) -> str | None:
    """The limit that cut an episode off, as one of its steps shows; None, if it was not cut off."""
    if stop is StopReason.COMPLETED:
        return "environment" if truncated else None
    return str(stop.value)
