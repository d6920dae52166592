"""SALT (arXiv 2510.20022) refines group methods that give all steps of a trajectory one advantage. It joins the
trajectories of a group to a graph. A step that occurs in several of them, with the same state, action and next state,
gets the mean of their advantages; any other step keeps its own. A step that all trajectories share does not explain
their different results and gets an advantage of 0. No critic and no further episodes are needed. Here the option
`history` also requires equal earlier steps, and `base: row` admits advantages that differ inside a trajectory. This
file is the filter; it follows an estimator, in `method.yaml` `grpo` from `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import pool, segment_range
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData, MissingColumn
from palaestra.registry import Columns, register

Steps = Annotated[int, pydantic.Field(ge=0)]
EDGE = ("state_key", "action_key", "next_key")


@register(
    "advantage",
    "salt",
    reads=("state_key", "action_key", "next_key", "terminated?"),
    writes=("advantage",),
    source="arXiv 2510.20022",
)
def salt(
    table: StepTable,
    advantage: Float[Tensor, " units"],
    *,
    history: Steps = 0,
    base: Literal["trajectory", "row"] = "trajectory",
    by: Columns = ("group",),
) -> Float[Tensor, " rows"]:
    """Merge equal steps of a group; a merged step gets the mean advantage of its occurrences.

        A'(s, a, s') = mean of A over the rows of the group with this state, action and next state

    A step that all trajectories share gets the mean over the group, which is 0 after GRPO; a step of one trajectory
    keeps its advantage. The sum over all rows does not change.

    Args:
        table: columns group, trajectory, turn, state_key, action_key, next_key, each (rows,). All terminated rows
            without a next state lead to one end state; any other missing key is equal to no other key.
        advantage: (rows,), or (tokens,) with one number per trajectory.
        history: ≥ 0, how many steps before must be equal too. Higher: fewer merges. Usual: 0.
        base: "trajectory" refuses an advantage that differs inside a trajectory, as the method is defined; "row" merges
            any advantage of rows, such as GiGPO's.
        by: columns whose equal values mark peers; rows of different sets are never merged.

    Returns: float32 (rows,); 0 on padding.
    Raises: MissingColumn, without keys; InvalidData, for an advantage that is not one number per trajectory.
    """
    value = _one_number(table, advantage, base)
    edge = _edges(table, by)
    order, last = table.timeline("trajectory")
    opens = torch.ones(len(table), dtype=torch.bool)
    opens[1:] = last[:-1]
    for _ in range(history):
        before = torch.empty_like(order)
        before[order] = torch.where(opens, edge.size, edge.codes[order].roll(1))
        edge = edge & Key(*compact(before))
    return torch.where(table.row_weight > 0, pool(value, by=edge), 0.0)


def _one_number(table: StepTable, advantage: Tensor, base: str) -> Tensor:
    """The given advantage per row; refuses one that differs inside a trajectory."""
    whole, value = table.key("trajectory"), advantage
    if len(advantage) != len(table):
        first = table["token_count"].cumsum(0) - table["token_count"]
        value = advantage[first]
        equal = bool((segment_range(advantage, by=whole.spread(table.token_row)) == 0).all())
    else:
        equal = base == "row" or bool((segment_range(advantage, by=whole) == 0).all())
    if not equal:
        raise InvalidData(
            where="advantage: salt",
            what="the advantage before it differs inside a trajectory.",
            remedy="Put grpo, rloo or dr_grpo before it, which give one number per trajectory; or set `base: row`.",
        )
    return value


def _edges(table: StepTable, by: Columns) -> Key:
    """The key of (peers, state, action, next state)."""
    for name in EDGE:
        if name not in table:
            raise MissingColumn(
                where="advantage: salt",
                what=f"the table has no column `{name}`, so equal steps cannot be found.",
                remedy="Let the environment fill `Observation.state_key`; actions need a `value`.",
            )
    reached = table["next_key"]
    if "terminated" in table:
        end = len(table.labels("next_key"))
        reached = torch.where((reached < 0) & table["terminated"], end, reached)
    missing = reached < 0
    if bool(missing.all()):
        raise MissingColumn(
            where="advantage: salt, column `next_key`",
            what="no row has a value in it.",
            remedy="Let the environment fill `Observation.state_key`.",
        )
    alone = int(reached.max()) + torch.cumsum(missing, 0)
    following = Key(*compact(torch.where(missing, alone, reached)), ("next_key",))
    return table.key(*by, "state_key", "action_key") & following
