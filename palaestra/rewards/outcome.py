"""The outcome reward: how the episode ended, and nothing on the way.

Knows outcomes and time. Knows nothing of what an outcome means.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, register


@register("reward", "outcome")
def outcome(table: StepTable, *, by: Columns = ("trajectory",)) -> Float[Tensor, " rows"]:
    """The raw outcome on the last row of each trajectory, 0 elsewhere; replaces the environment's rewards.

    Args:
        table: column outcome (rows,), equal on all rows of a trajectory; terminated, truncated (rows,), if there:
            a trajectory with neither on its last row is unfinished, and without an outcome it gets 0.
        by: ("trajectory", "agent") puts it on every agent's last row, for estimators that follow each agent.

    Returns: float32 (rows,).
    Raises: MissingColumn, if there are no outcomes; InvalidData, if a trajectory has none.
    """
    order, last = table.timeline(*by)
    ends = order[last]
    ends = ends[table.weight[ends] > 0]
    result = table["outcome"][ends]
    unfinished = torch.zeros(len(ends), dtype=torch.bool)
    if "terminated" in table and "truncated" in table:
        unfinished = ~(table["terminated"] | table["truncated"])[ends]
    result = torch.where(unfinished & result.isnan(), 0.0, result)
    missing = result.isnan().nonzero()
    if len(missing):
        row = int(ends[missing[0, 0]])
        raise InvalidData(
            where=f"reward: outcome, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what=f"it has no outcome, as {len(missing)} of {len(ends)}.",
            remedy="Give `success` or `outcome` in the environment's last `info`, or use reward: environment.",
        )
    return torch.zeros(len(table)).index_copy_(0, ends, result)
