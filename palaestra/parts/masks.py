"""Overlong filtering: what was cut off is not trained on, since nobody knows how it would have ended.

Knows stop reasons and lengths of trajectories. Knows nothing of rewards or losses.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Key, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.trajectory import StopReason
from palaestra.registry import PositiveInt, register

Stop = Literal["environment", "max_turns", "max_tokens", "max_tool_calls", "context_overflow", "parse_error", "timeout"]
LIMITS: tuple[Stop, ...] = ("environment", "max_turns", "max_tokens", "max_tool_calls", "context_overflow", "timeout")


@register("weights", "overlong_filter", writes=("weight", "counts"), source="arXiv 2503.14476")
class OverlongFilter:
    """0 on all rows of a trajectory that a limit cut off, 1 on others.

    The trajectory keeps its place in the statistics of its group: its peers are compared with its reward too. Its
    tokens leave the denominators of the aggregation.

    Args:
        stops: which limits. "environment" is the environment's own, where it says `truncated`; the others are stop
            reasons of a rollout. Usual: all of them.
        maximum: response tokens; a trajectory with more is filtered however it ended. None: no length is too long.

    Called with a table, columns trajectory, token_count (rows,), it returns float32 (rows,).
    """

    def __init__(self, *, stops: tuple[Stop, ...] = LIMITS, maximum: PositiveInt | None = None) -> None:
        self._stops, self._maximum = frozenset(stops), maximum

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        cut = [_limit(row.trajectory.stop, row.step.truncated) in self._stops for row in iteration.rows]
        key = table.key("trajectory")
        own = Key(key.codes, key.size, (), (table.row_weight > 0).double())
        length = segment_sum(table["token_count"], by=own)
        return self.weigh(segment_sum(torch.tensor(cut), by=own) > 0, length)[key.codes]

    def weigh(self, cut: Tensor, length: Tensor) -> Float[Tensor, " trajectories"]:
        """0 for a trajectory that was cut off or is longer than `maximum`, else 1."""
        struck = cut.bool() if self._maximum is None else cut.bool() | (length > self._maximum)
        return torch.where(struck, 0.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what is filtered depends on the iteration's trajectories only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""


def _limit(stop: StopReason, truncated: bool) -> str | None:
    """What cut an episode off, judged by one of its steps; None: nothing."""
    if stop is StopReason.COMPLETED:
        return "environment" if truncated else None
    return str(stop.value)
