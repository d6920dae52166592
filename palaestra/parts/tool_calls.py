"""Functions for rewards by tool calls: counts and outcomes of trajectories, and rewards on their last rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra.segments import segment_sum
from palaestra.data.keys import Key
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of


def total_of(table: StepTable, values: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The sum of the values over the trajectory of each row, without padding: float64 (rows,)."""
    key = table.key("trajectory")
    own = Key(key.codes, key.size, weight=(table.row_weight > 0).double())
    return segment_sum(values.nan_to_num(), by=own)[key.codes]


def tool_calls(table: StepTable, *, where: str) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """For each row, the number of tool calls in its trajectory, and how many of them failed: float64 (rows,) each.

    Raises: InvalidData, for a negative count, or for more failures than calls.
    """
    calls, errors = table["tool_call"], table["tool_error"]
    refuse(
        table,
        ~((calls >= errors) & (errors >= 0)),
        lambda row: f"it has {float(calls[row]):g} tool calls, of which {float(errors[row]):g} failed.",
        where=where,
        remedy="Let the environment give `tool_call` and `tool_error` for each act, with tool_error ≤ tool_call.",
    )
    return total_of(table, calls), total_of(table, errors)


def outcomes(table: StepTable, *, where: str, binary: bool = False) -> Float[Tensor, " rows"]:
    """The outcome of the trajectory of each row, 0 if a limit cut it off unjudged: float64 (rows,).

    Raises: InvalidData, if it is missing, not in [0, 1], or, with `binary`, neither 0 nor 1.
    """
    found = outcomes_of(table)
    good = (found == 0) | (found == 1) if binary else (found >= 0) & (found <= 1)
    refuse(
        table,
        ~good,
        lambda row: (
            "it has no outcome."
            if bool(found[row].isnan())
            else f"its outcome is {float(found[row]):g}, not {'0 or 1' if binary else 'in [0, 1]'}."
        ),
        where=where,
        remedy="Let the environment give `success` in its info: true for a right answer.",
    )
    return found.double()


def last_rows(table: StepTable) -> Bool[Tensor, " rows"]:
    """True on the last row of each trajectory, without padding: bool (rows,)."""
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool)
    ends[order[last]] = True
    return ends & (table.row_weight > 0)


def at_the_end(table: StepTable, values: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The values on the last row of each trajectory, and 0 on all other rows and on padding: float32 (rows,)."""
    return torch.where(last_rows(table), values, 0.0).float()


def refuse(
    table: StepTable, wrong: Bool[Tensor, " rows"], what: Callable[[int], str], *, where: str, remedy: str = ""
) -> None:
    """Raises: InvalidData, for the first wrong row that is not padding. `what(row)` gives the text of the error."""
    wrong = wrong & (table.row_weight > 0)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        name = table.labels("trajectory")[int(table["trajectory"][row])]
        raise InvalidData(
            where=f"{where}, trajectory {name}, turn {int(table['turn'][row])}", what=what(row), remedy=remedy
        )


__all__ = ["at_the_end", "last_rows", "outcomes", "refuse", "tool_calls", "total_of"]
