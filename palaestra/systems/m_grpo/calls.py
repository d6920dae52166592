"""Finds which rows of a table are the main agent's, and which belong to one call of a sub-agent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from palaestra.data.keys import Key
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData


class Calls(NamedTuple):
    """The main agent's rows, and the calls of sub-agents.

    Attributes:
        main: bool (rows,), whether a row is the main agent's.
        key: groups the rows of one call of one sub-agent: (trajectory, agent, invocation).
    """

    main: Bool[Tensor, " rows"]
    key: Key


def calls_of(table: StepTable, *, main: str | None, where: str) -> Calls:
    """Separate the main agent's rows from those of calls.

    Args:
        table: columns trajectory, agent, turn; invocation (absent: one call per agent and trajectory); parent, the turn
            of the act that called (absent: there was no call).
        main: name of the main agent; None: rows without a parent are the main agent's.
        where: the caller's name, for error messages.

    Raises: InvalidData, if no row is the main agent's, or if a call comes from no earlier act of its trajectory.
    """
    parent = _parents(table, where)
    if main is None:
        own = parent < 0
    else:
        names = [str(name) for name in table.labels("agent")]
        if main not in names:
            raise InvalidData(
                where=where,
                what=f"the main agent `{main}` never acts; the agents are {', '.join(names)}.",
                remedy="Set `main` to the agent that calls the others, or leave it out if only that agent has no "
                "`parent`.",
            )
        own = table["agent"] == names.index(main)
    _refuse_orphans(table, parent, ~own, where)
    columns = ("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
    return Calls(own, table.key(*columns))


def _parents(table: StepTable, where: str) -> Int[Tensor, " rows"]:
    """The turn that called each row; −1 for a row without parent."""
    if "parent" not in table:
        return torch.full((len(table),), -1)
    labels = table.labels("parent")
    strange = [label for label in labels if not isinstance(label, int | np.integer)]
    if strange:
        raise InvalidData(
            where=where,
            what=f"`parent` is {strange[0]!r}, not the turn of an act.",
            remedy="Give the turn of the act that called, and None for an agent that was not called.",
        )
    turns = torch.tensor([*(int(label) for label in labels), -1])  # a row without a parent has code −1: the last entry
    return turns[table["parent"]]


def _refuse_orphans(table: StepTable, parent: Tensor, called: Tensor, where: str) -> None:
    """Raise InvalidData if a called row has no parent among the earlier turns of its trajectory."""
    if not bool(called.any()):
        return
    turn, trajectory = table["turn"], table["trajectory"]
    span = int(turn.max()) + 2
    there = torch.isin(trajectory * span + parent, trajectory * span + turn)
    lost = called & ((parent < 0) | (parent >= turn) | ~there)
    if not bool(lost.any()):
        return
    row = int(lost.nonzero()[0])
    agent = table.labels("agent")[int(table["agent"][row])]
    found = "none" if int(parent[row]) < 0 else f"turn {int(parent[row])}"
    raise InvalidData(
        where=f"{where}, trajectory {table.labels('trajectory')[int(trajectory[row])]}, turn {int(turn[row])}",
        what=f"`{agent}` acts in a call that no earlier act of this trajectory made: its parent is {found}.",
        remedy="Let the environment give `parent`, the turn of the calling act, with each act of a called agent.",
    )


__all__ = ["Calls", "calls_of"]
