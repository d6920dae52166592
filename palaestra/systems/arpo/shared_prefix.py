"""An advantage filter for branching trajectories, in which one step belongs to several trajectories."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_mean
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import register


@register("advantage", "shared_prefix", reads=("node",), writes=("advantage",), source="arXiv 2507.19849")
def shared_prefix(
    table: StepTable, advantage: Float[Tensor, " units"], *, mode: Literal["soft", "hard"] = "soft"
) -> Float[Tensor, " units"]:
    """Set the advantage of steps that several branches share.

        soft    A' = A: each copy of the step has the advantage of its own branch
        hard    A' = mean of A over the rows with this step's node, weighted by their row weights

    While no token is clipped and all tokens have one coefficient (`aggregate: token-mean`), both have the same
    gradient, because the advantages of a step's copies add up. Where sequences are averaged first they differ, because
    a short branch then weighs more.

    Args:
        table: column node (rows,): equal for the copies of one step, as the strategy `branching` writes it.
        advantage: (rows,) or (tokens,); copies of a step have the same number of tokens.
        mode: "soft" or "hard"; "hard" averages the luck of single branches out of the shared steps. Usual: soft.

    Returns: float32, with the shape of `advantage`; 0 on padding.
    Raises: MissingColumn, without the column `node`; InvalidData, if copies differ in length.
    """
    node = table.key("node")
    if mode == "soft":
        return torch.where(_counts(table, advantage), advantage, 0.0).float()
    _refuse_unequal(table, node)
    if len(advantage) == len(table):
        return _mean(advantage, node.codes, table.row_weight)
    start = table["token_count"].cumsum(0) - table["token_count"]
    place = torch.arange(table.tokens) - start[table.token_row]
    token = node.codes[table.token_row] * (int(place.max()) + 1) + place
    return _mean(advantage, token, table.row_weight[table.token_row])


def _mean(advantage: Tensor, codes: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over the units of each code."""
    key = Key(*compact(codes), weight=weight.double())
    return torch.where(weight > 0, segment_mean(advantage.double(), by=key)[key.codes], 0.0).float()


def _counts(table: StepTable, advantage: Tensor) -> Tensor:
    counts = table.row_weight > 0
    return counts if len(advantage) == len(table) else counts[table.token_row]


def _refuse_unequal(table: StepTable, node: Key) -> None:
    count = table["token_count"]
    first = torch.zeros(node.size, dtype=count.dtype).index_copy_(0, node.codes, count)
    unequal = first[node.codes] != count
    if bool(unequal.any()):
        row = int(unequal.nonzero()[0, 0])
        raise InvalidData(
            where=f"column `node`, row {row}",
            what=f"it has {int(count[row])} tokens, but another copy of its step has {int(first[node.codes[row]])}.",
            remedy="Give one `node` only to copies of one step, and every other row its own.",
        )
