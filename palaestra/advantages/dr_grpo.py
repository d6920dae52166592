"""Dr. GRPO: GRPO without the division by the group's deviation.

Knows rewards and groups. Knows nothing of turns, tokens or models. The other half of the method, a constant
loss normalizer, is the aggregation `constant-length`.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, standardize, total_return
from palaestra.registry import Columns, Singleton, Unit, ZeroVariance, register


@register("advantage", "dr_grpo", uses=("group",), source="arXiv 2503.20783")
def dr_grpo(
    table: StepTable,
    *,
    by: Columns = ("group",),
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Subtract the group's mean return; very easy and very hard tasks are not blown up.

        A_i = R_i − mean of R over the group

    Args:
        table: columns group, trajectory, reward, each (rows,).
        by, unit, singleton, zero_variance: as in `grpo`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories.
    """
    return standardize(
        total_return(table),
        by=table.key(*by),
        unit=table.unit(unit),
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
