"""Which rows stay in the update."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import segment_equal, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, register


@register(
    "selection",
    "constant_groups",
    reads=(),
    reads_if={"column=outcome": ("outcome",)},
    writes=("row_weight",),
    source="arXiv 2503.14476",
)
def constant_groups(table: StepTable, *, column: str = "outcome", by: Columns = ("group",)) -> Bool[Tensor, " rows"]:
    """Keep the rows of groups whose trajectories differ in a column, by more than the rounding of sums.

    Args:
        table: that column, (rows,).
        column: "outcome", the raw result, never shaped; "return", the sum of rewards; or any other column.
        by: columns that peers agree in.

    Returns: bool (rows,), False where the group is constant.
    Raises: MissingColumn, if there is no such column; InvalidData, if it is missing on some rows.
    Differs from the authors' recipe: only drops; sampling more groups in their place is the sampler's affair.
    """
    values = total_return(table) if column == "return" else table[column]
    counts = table.row_weight > 0
    missing = int(values[counts].isnan().sum())
    if missing:
        raise InvalidData(
            where="selection: constant_groups",
            what=f"the column `{column}` is missing on {missing} of {int(counts.sum())} rows.",
            remedy="Use `column: return`, or give the outcome in the environment's last `info`.",
        )
    key = table.key(*by)
    return ~segment_equal(values, by=key)[key.codes]


@register("selection", "all", reads=(), writes=("row_weight",))
def everything(table: StepTable) -> Bool[Tensor, " rows"]:
    """True for each row: bool (rows,)."""
    return torch.ones(len(table), dtype=torch.bool)
