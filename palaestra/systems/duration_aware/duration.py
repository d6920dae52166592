"""Durations as weights: what takes long comes back rarely, and then counts for more.

Knows one number per row: how long its act took. Knows nothing of what was done.
"""

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

    Acts whose results arrive at a rate π(a) / dt(a) are seen too rarely by the factor dt; times dt the expected
    gradient is that of waiting for all. This rate holds where the workers busy with an act are a share π(a): slots or
    quotas per act, or a batch that is closed before the slow ones came back. It does not hold for workers that draw a
    new act as soon as they are free: these return acts as often as π draws them, the plain gradient is right, and
    weights would count slow acts too often.

    Args:
        table: the column (rows,), > 0.
        normalize: "batch_mean", by the mean over the rows that count; "none", no weight at all.
        column: "duration", as the environment tells it; "seconds", wall time.
        limit: of time, which acts took that were cut off without a duration (0); None: they are refused.

    Returns: float32 (rows,); 0 on padding.
    Raises: MissingColumn, without the column; InvalidData, for a duration that is missing or not above 0.
    """
    if normalize == "none":
        return torch.ones(len(table))
    if column not in table:
        raise MissingColumn(
            where="weights: duration",
            what=f"the table has no column `{column}`.",
            remedy='Let the environment tell `info["duration"] = {agent: 3.0}` of each act, or set column=seconds.',
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
            what=f"its act took {float(took[row]):g}, as {int(wrong.sum())} of {int(counts.sum())} rows.",
            remedy="Tell the duration of every act; of one that ran into a time limit, that limit: `limit: …`.",
        )
    took = torch.where(counts, took, 0.0)
    return (took / (took.sum() / counts.sum().clamp_min(1)).clamp_min(1e-300)).float()
