"""A reward that differs from row to row, so that pinned runs always have something to learn."""

import torch
from torch import Tensor

from palaestra.data import StepTable


def pay(table: StepTable, *, size: float = 0.5) -> Tensor:
    """The reward so far plus a number in (−size, size) that depends on the row's place alone: float32 (rows,)."""
    place = torch.arange(len(table), dtype=torch.float64)
    return (table["reward"] + size * torch.sin(12.9898 * place + 78.233)).float()
