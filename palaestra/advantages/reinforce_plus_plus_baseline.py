"""REINFORCE++-baseline: center inside the group, scale over the whole batch.

Knows rewards, groups and numbers of tokens. Knows nothing of models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, standardize, total_return, whiten
from palaestra.registry import Columns, Singleton, Unit, register


@register("advantage", "reinforce_plus_plus_baseline", uses=("group",), source="arXiv 2501.03262")
def reinforce_plus_plus_baseline(
    table: StepTable,
    *,
    by: Columns = ("group",),
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
) -> Float[Tensor, " tokens"]:
    """Subtract the group's mean return, then whiten over the response tokens of the batch.

        A_u = (C_u − mean of C) / deviation of C, over the tokens of the batch;  C = R_i − mean of R in the group

    A group whose returns are nearly equal is not blown up, since the deviation is the batch's.

    Args:
        table: columns group, trajectory, reward (rows,), token_count.
        by, unit, singleton: as in `grpo`.

    Returns: float32 (tokens,).
    Raises: InvalidData, if no group has two trajectories.
    """
    centered = standardize(
        total_return(table), by=table.key(*by), unit=table.unit(unit), singleton=singleton, need_peers=True
    )
    return whiten(table.per_token(centered), weight=table.per_token(table.weight))
