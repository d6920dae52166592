"""A reward for smoke runs. It differs from row to row, so that there is something to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import NonNegative


def varied(table: StepTable, *, size: NonNegative = 0.5) -> dict[str, Tensor]:
    """Add an amount to each reward, and set outcomes. Both depend only on the position of the row.

    Args:
        size: largest absolute value of the amount.

    Returns: reward (rows,); if the table has outcomes, also outcome (rows,), which is 1 for every second trajectory and
        else 0.
    """
    place = torch.arange(len(table), dtype=torch.float64)
    columns = {"reward": (table["reward"] + size * torch.sin(12.9898 * place + 78.233)).float()}
    if "outcome" in table:
        columns["outcome"] = (table["trajectory"] % 2).float()
    return columns
