"""RLOO: the baseline of a trajectory is the mean return of the others of its group.

Knows rewards and groups. Knows nothing of turns, tokens or models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, standardize, total_return
from palaestra.registry import Columns, Singleton, Unit, ZeroVariance, register


@register("advantage", "rloo", uses=("group",), source="arXiv 2402.14740")
def rloo(
    table: StepTable,
    *,
    by: Columns = ("group",),
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Leave the own return out of the baseline: unbiased, and no scale.

        A_i = R_i − mean of R over the other trajectories of the group = n/(n−1) · (R_i − mean of R)

    Args:
        table: columns group, trajectory, reward, each (rows,).
        by, unit, singleton, zero_variance: as in `grpo`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories; a raw return would be no advantage.
    """
    return standardize(
        total_return(table),
        by=table.key(*by),
        unit=table.unit(unit),
        center="leave_one_out",
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
