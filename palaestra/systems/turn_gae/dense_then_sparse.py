"""The reward `dense_then_sparse`: it pays for progress at first, and later for success alone."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import NonNegative, PositiveInt, register


@register(
    "reward",
    "dense_then_sparse",
    reads=("progress", "outcome", "invalid?", "truncated?"),
    writes=("reward",),
    source="arXiv 2510.12693, public code",
)
def dense_then_sparse(
    table: StepTable,
    iteration: Iteration,
    *,
    dense: PositiveInt = 22,
    success: NonNegative = 3.0,
    progress: NonNegative = 1.0,
    invalid: NonNegative = 0.5,
) -> Float[Tensor, " rows"]:
    """Pay for new progress and for success at first, and for success alone later.

        r_k = success · [last row] · outcome                                   always
            + progress · [progress_k above all earlier of the trajectory]      before iteration `dense`
            − invalid · [action k could not be read]                           before iteration `dense`

    A trajectory's progress starts from 0.

    Args:
        table: columns trajectory, turn, progress, outcome (rows,); invalid (rows,) if the environment gives it.
        dense: > 0, iterations with the dense terms. Higher: an easier start, and habits that serve progress only.
            Usual: 22.
        success: ≥ 0, the reward of an outcome of 1. Usual: 3.
        progress: ≥ 0, the reward of each step that reaches a new highest progress. Usual: 1.
        invalid: ≥ 0, the penalty of an unreadable action. Usual: 0.5.

    Returns: float32 (rows,), 0 on padding.
    Metrics: reward/dense, 1 while the dense terms are paid.
    Raises: MissingColumn, without `progress` or `outcome`; InvalidData, for a trajectory without outcome.
    """
    early = iteration.number < dense
    iteration.metrics["reward/dense"] = float(early)
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last) & (table.row_weight > 0)
    outcome = outcomes_of(table).double()
    if not bool(outcome[ends].isfinite().all()):
        raise InvalidData(
            where="reward: dense_then_sparse",
            what=f"{int((~outcome[ends].isfinite()).sum())} of {int(ends.sum())} trajectories have no outcome.",
            remedy="Give `success` in the environment's last `info`.",
        )
    reward = torch.where(ends, success * outcome, 0.0)
    if early:
        reward = reward + progress * _advances(table, order)
        if "invalid" in table:
            reward = reward - invalid * table["invalid"].double()
    return torch.where(table.row_weight > 0, reward, 0.0).float()


def _advances(table: StepTable, order: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """1 where a row's progress is above 0 and above that of all earlier rows of its trajectory."""
    _, last = table.timeline("trajectory")
    place = torch.cat([last.new_zeros(1), last[:-1]]).cumsum(0)  # which trajectory, in timeline order
    progress = table["progress"].double()[order].clamp_min(0.0)
    floor = place * (progress.max() + 1)  # raises each trajectory above earlier ones, so one running maximum serves all
    lifted = progress + floor
    earlier = torch.cat([floor[:1], lifted.cummax(0).values[:-1]])
    new = lifted > torch.maximum(earlier, floor)
    return torch.zeros(len(table), dtype=torch.float64).index_copy_(0, order, new.double())
