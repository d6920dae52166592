"""Overlong filtering: what was cut off is not trained on, since nobody knows how it would have ended."""

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
    """0 on all rows of a trajectory that a limit cut off, 1 on others.

    The trajectory keeps its place in the statistics of its group: its peers are compared with its reward too. Its
    tokens leave the denominators of the aggregation.

    Args:
        table: columns trajectory, token_count (rows,).
        stops: which limits. "environment" is the environment's own, where it says `truncated`; the others are stop
            reasons of a rollout. Usual: all of them.
        maximum: response tokens; a trajectory with more is filtered however it ended. None: no length is too long.

    Returns: float32 (rows,).
    """
    cut = [_limit(row.trajectory.stop, row.step.truncated) in stops for row in iteration.rows]
    key = table.key("trajectory")
    counted = Key(key.codes, key.size, (), (table.row_weight > 0).double())
    length = segment_sum(table["token_count"], by=counted)
    return mask_overlong(segment_sum(torch.tensor(cut), by=counted) > 0, length, maximum=maximum)[key.codes]


def mask_overlong(cut: Tensor, length: Tensor, *, maximum: int | None = None) -> Float[Tensor, " trajectories"]:
    """0 for a trajectory that was cut off or is longer than `maximum`, else 1."""
    masked = cut.bool() if maximum is None else cut.bool() | (length > maximum)
    return torch.where(masked, 0.0, 1.0)


def _limit(stop: StopReason, truncated: bool) -> str | None:
    """What cut an episode off, judged by one of its steps; None: nothing."""
    if stop is StopReason.COMPLETED:
        return "environment" if truncated else None
    return str(stop.value)
