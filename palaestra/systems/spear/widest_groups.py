"""The selection `widest_groups`: it keeps the groups whose returns differ most."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import segment_count, segment_std, total_return
from palaestra.data import Key, StepTable
from palaestra.registry import register

Share = Annotated[float, pydantic.Field(gt=0, le=1)]


@register(
    "selection",
    "widest_groups",
    reads=("anchored?",),
    writes=("row_weight",),
    source="arXiv 2509.22601, public code",
)
def widest_groups(table: StepTable, *, share: Share = 0.75) -> Bool[Tensor, " rows"]:
    """Keep the rows of the `share` of groups with the largest deviation of returns, at least one group.

    Args:
        table: columns group, trajectory, reward, each (rows,). A second batch of replayed rows (column `anchored`) is
            always kept.
        share: in (0, 1], rounded down to whole groups. Lower: fewer groups, with larger differences. 1 keeps all.
            Usual: 0.75.

    Returns: bool (rows,). Among equal deviations the group whose name comes first is kept, whatever the order of rows.
    """
    if share == 1:
        return torch.ones(len(table), dtype=torch.bool)
    second = table["anchored"] > 0 if "anchored" in table else torch.zeros(len(table), dtype=torch.bool)
    order, last = table.timeline("trajectory")
    once = torch.zeros(len(table), dtype=torch.float64)
    once[order[last]] = 1.0  # each trajectory counts once
    group = table.key("group")
    peers = Key(group.codes, group.size, (), once * (table.row_weight > 0) * ~second)
    spread, there = segment_std(total_return(table), by=peers).tolist(), (segment_count(by=peers) > 0).tolist()
    labels = [str(label) for label in table.labels("group")]
    ranked = sorted((code for code in range(group.size) if there[code]), key=lambda code: (-spread[code], labels[code]))
    kept = torch.zeros(group.size, dtype=torch.bool)
    kept[ranked[: max(int(share * len(ranked) + 1e-9), 1)]] = True
    return kept[group.codes] | second
