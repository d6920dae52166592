"""The weights `fresh`: every token is in the policy loss once, in the iteration that generated it."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import register


@register("weights", "fresh", reads=("fresh",), writes=("weight", "counts"), source="arXiv 2506.15050")
def fresh(table: StepTable) -> Float[Tensor, " rows"]:
    """w = fresh: 1 on steps that were generated in this iteration, 0 on those of earlier windows.

    Args:
        table: column fresh (rows,), as the runner `windows` writes it.

    Returns: float32 (rows,).
    Raises: MissingColumn, without the column; InvalidData, for a number other than 0 and 1.
    """
    column = table["fresh"]
    if not bool(((column == 0) | (column == 1)).all()):
        row = int(((column != 0) & (column != 1)).nonzero()[0, 0])
        raise InvalidData(
            where=f"weights: fresh, row {row}",
            what=f"`fresh` is {float(column[row]):g}; it must be 1 (this window) or 0 (an earlier one).",
            remedy="Let `rollout.runner: windows` write the column.",
        )
    return column.float()
