"""DCPO: all segments of a trajectory whose agent edits its own context get the trajectory's advantage."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Scale, register


@register(
    "advantage",
    "dcpo",
    reads=("segment?", "pruned?"),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2510.12635",
)
def dcpo(
    table: StepTable,
    *,
    scale: Scale = "std",
    peers: Peers = Peers(fixed=("unit",)),
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group; every segment of a trajectory gets the trajectory's advantage.

        A_i = (R_i − mean of R over the group) / (deviation of R over the group + 1e-6),   A of a row = A_i

    A *segment* is what was generated between two memory actions under one growing prefix. Every row keeps the prompt
    that its policy got, and rows whose prompts extend each other are one training sequence. So each segment is trained
    under its own context, and without memory actions this is GRPO.

    Args:
        table: columns group, trajectory, agent, turn, reward, segment, each (rows,); pruned (rows,), the number of
            outputs that the row's memory action removed, if any row has one.
        scale: "std" divides by the deviation; "none" only centers.
        peers: by, ddof, singleton and zero_variance of `Peers`; each trajectory counts once.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories, or if a segment starts without a memory action: its prompt
        does not extend the previous one, and the agent did not edit it.
    """
    _refuse_unedited(table)
    return peers.standardize(total_return(table), table, scale=scale)


def _refuse_unedited(table: StepTable) -> None:
    if "segment" not in table:
        return
    order, last = table.timeline("trajectory", "agent")
    segment, weight = table["segment"][order], table.row_weight[order]
    follows = ~last[:-1] & (weight[1:] > 0) & (weight[:-1] > 0)
    new = follows & (segment[1:] != segment[:-1])
    pruned = table["pruned"][order] if "pruned" in table else torch.zeros(len(table))
    broken = (new & ~(pruned[:-1] > 0)).nonzero()
    if not len(broken):
        return
    row = int(order[int(broken[0, 0]) + 1])
    where = f"trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}, turn {int(table['turn'][row])}"
    raise InvalidData(
        where=f"advantage: dcpo, {where}",
        what=f"its prompt starts a segment, but the row before is not a memory action; so do {len(broken)} rows.",
        remedy="Use `program: curate` with `context: editable`; with other contexts use `advantage: grpo`.",
    )
