"""Selections: the rows that an update learns from."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import segment_equal, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Columns, register


@register(
    "selection",
    "constant_groups",
    reads=(),
    reads_if={"column=outcome": ("outcome", "truncated?")},
    writes=("row_weight",),
    source="arXiv 2503.14476",
)
def constant_groups(table: StepTable, *, column: str = "outcome", by: Columns = ("group",)) -> Bool[Tensor, " rows"]:
    """Keep the groups whose trajectories differ in a column. Differences from the rounding of sums do not count.

    Args:
        table: that column, (rows,).
        column: "outcome", the raw result, 0 for a trajectory that a limit cut off unjudged; "return", the sum of
            rewards; or the name of another column.
        by: rows that agree in these columns are a group.

    Returns: bool (rows,), False where all values of the group are equal.
    Raises: MissingColumn, if there is no such column; InvalidData, if it is missing on some rows.
    Differs from the authors' recipe: it does not sample new groups; the strategy `dynamic_sampling` does.
    """
    values = total_return(table) if column == "return" else table[column]
    values = outcomes_of(table) if column == "outcome" else values
    counts = table.row_weight > 0
    missing = int(values[counts].isnan().sum())
    if missing:
        raise InvalidData(
            where="selection: constant_groups",
            what=f"the column `{column}` has no value on {missing} of {int(counts.sum())} rows.",
            remedy="Use `column: return`, or let the environment give the outcome in its last `info`.",
        )
    key = table.key(*by)
    return ~segment_equal(values, by=key)[key.codes]


@register("selection", "all", reads=(), writes=("row_weight",))
def everything(table: StepTable) -> Bool[Tensor, " rows"]:
    """Keep all rows: bool (rows,)."""
    return torch.ones(len(table), dtype=torch.bool)
