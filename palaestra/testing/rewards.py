"""A reward for smokes: it differs from row to row, so that there is something to learn from."""

from __future__ import annotations

import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import NonNegative


def varied(table: StepTable, *, size: NonNegative = 0.5) -> dict[str, Tensor]:
    """Rewards and outcomes that depend on the place of a row alone.

    Args:
        size: largest size of what is added to the reward of a row.

    Returns: reward (rows,); where the table has outcomes, also outcome (rows,): every second trajectory succeeded.
    """
    place = torch.arange(len(table), dtype=torch.float64)
    columns = {"reward": (table["reward"] + size * torch.sin(12.9898 * place + 78.233)).float()}
    if "outcome" in table:
        columns["outcome"] = (table["trajectory"] % 2).float()
    return columns
