"""Fresh steps only: every token enters the policy loss once, in the iteration which generated it.

Knows one column of the table. Knows nothing of runners or of the critic's loss, which old steps still reach.
"""

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
    Raises: MissingColumn, if no runner says what is fresh; InvalidData, for another number than 0 or 1.
    """
    column = table["fresh"]
    if not bool(((column == 0) | (column == 1)).all()):
        row = int(((column != 0) & (column != 1)).nonzero()[0, 0])
        raise InvalidData(
            where=f"weights: fresh, row {row}",
            what=f"`fresh` is {float(column[row]):g}; a step is of this window (1) or of an earlier one (0).",
            remedy="Leave the column to `rollout.runner: windows`.",
        )
    return column.float()
