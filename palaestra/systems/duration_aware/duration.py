"""A weight by duration: acts that take long return rarely, so that each of them counts more."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.registry import Positive, register


@register(
    "weights",
    "duration",
    reads=(),
    reads_if={"column=duration": ("duration?",), "column=seconds": ("seconds",), "limit": ("truncated?",)},
    writes=("weight", "counts"),
    source="arXiv 2509.01684",
)
def duration(
    table: StepTable,
    *,
    normalize: Literal["none", "batch_mean"] = "batch_mean",
    column: str = "duration",
    limit: Positive | None = None,
) -> Float[Tensor, " rows"]:
    """w = dt / mean of dt over the batch, a constant factor of the loss; equal durations give 1.

    If results arrive at a rate π(a) / dt(a), acts are undersampled by the factor dt, and gradients times dt have the
    expectation of waiting for all results. This rate holds where the share of workers busy with an act is π(a): with
    slots or quotas per act, or with a batch that is closed before slow results are in. It does not hold for workers
    that draw a new act as soon as they are free: their results arrive as often as π draws the acts, the plain gradient
    is right, and weights would overcount slow acts.

    Args:
        table: the column `column` (rows,), > 0.
        normalize: "batch_mean" divides by the mean over the rows that count; "none" gives every row the weight 1.
        column: "duration", given by the environment; "seconds", wall time.
        limit: duration of acts that were cut off and have none (0): the time limit that they reached; None: they are
            refused.

    Returns: float32 (rows,); 0 on padding, except with "none".
    Raises: MissingColumn, without the column; InvalidData, for a duration that is missing or not above 0.
    """
    if normalize == "none":
        return torch.ones(len(table))
    if column not in table:
        raise MissingColumn(
            where="weights: duration",
            what=f"the table has no column `{column}`.",
            remedy='Let the environment give `info["duration"] = {agent: 3.0}` for each act, or set column=seconds.',
        )
    took, counts = table[column].double(), table.row_weight > 0
    if limit is not None and "truncated" in table:
        took = torch.where(table["truncated"] & ~(took > 0), limit, took)
    wrong = counts & ~((took > 0) & took.isfinite())
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        name = table.labels("trajectory")[int(table["trajectory"][row])]
        raise InvalidData(
            where=f"weights: duration, trajectory {name}, turn {int(table['turn'][row])}",
            what=f"its duration is {float(took[row]):g}; {int(wrong.sum())} of {int(counts.sum())} rows are like this.",
            remedy="Give the duration of every act; set `limit` to the time limit for acts that were cut off.",
        )
    took = torch.where(counts, took, 0.0)
    return (took / (took.sum() / counts.sum().clamp_min(1)).clamp_min(1e-300)).float()
