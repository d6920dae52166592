"""A price for actions which the environment could not read.

Knows the column `invalid`. Knows nothing of how actions are parsed.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import NonNegative, register


@register("reward", "invalid_penalty", source="arXiv 2602.08847, public code")
def invalid_penalty(table: StepTable, *, coefficient: NonNegative = 0.1) -> Float[Tensor, " rows"]:
    """reward − coefficient · invalid.

    Args:
        table: column invalid (rows,), 1 where the action was unreadable; absent, if none was.
        coefficient: ≥ 0. Higher: formats are learned sooner, and silence may be too. Usual: 0.01–0.1.

    Returns: float32 (rows,).
    """
    if "invalid" not in table:
        return table["reward"]
    return table["reward"] - coefficient * table["invalid"].float()
