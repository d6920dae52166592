"""REINFORCE: what is still to come, minus a baseline.

Knows rewards, turns and response tokens as units of time. Knows nothing of models.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, reward_to_go, standardize
from palaestra.registry import Columns, Discount, register


@register("advantage", "reinforce", source="Williams 1992")
def reinforce(
    table: StepTable,
    *,
    baseline: Literal["none", "batch", "group"] = "none",
    gamma: Discount = 1.0,
    level: Literal["row", "token"] = "row",
    chain: Columns = ("trajectory",),
) -> Float[Tensor, " units"]:
    """Reward to go minus a baseline.

        A_u = D_u − b          D_u = r_u + gamma · D_{u+1}

    Args:
        table: columns group, trajectory, turn, reward (rows,); token_count at level "token".
        baseline: b is 0, the mean of D over all units of the batch, or over those of the group.
        gamma: in (0, 1]. Higher: late rewards reach early units. Usual: 0.99–1.
        level: the unit of time, a row or a response token; a row's reward stands on its last token.
        chain: rows that agree in these columns follow each other in time.

    Returns: float32 (rows,) at level "row", (tokens,) at level "token".
    Raises: InvalidData, if baseline is "group" and no group has two units.
    """
    values = reward_to_go(table, gamma=gamma, by=chain, level=level)
    peers = table.key("group") if baseline == "group" else table.key()
    return standardize(
        values,
        by=peers if level == "row" else peers.spread(table.token_row),
        center="none" if baseline == "none" else "mean",
        singleton="raw" if baseline == "none" else "zero",
        need_peers=baseline == "group",
    )
