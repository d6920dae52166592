"""GRPO: a trajectory is compared with the other trajectories of its group.

Knows rewards and groups. Knows nothing of turns, tokens or models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, standardize, total_return
from palaestra.registry import Columns, Degrees, Scale, Singleton, Unit, ZeroVariance, register


@register("advantage", "grpo", uses=("group",), source="arXiv 2402.03300")
def grpo(
    table: StepTable,
    *,
    scale: Scale = "std",
    by: Columns = ("group",),
    unit: Unit = "trajectory",
    ddof: Degrees = 1,
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group; every row of a trajectory gets the same number.

        A_i = (R_i − mean of R over the group) / (deviation of R over the group + 1e-6)

    Args:
        table: columns group, trajectory, reward, each (rows,).
        scale: "std" divides by the deviation; "none" is Dr. GRPO.
        by: columns that peers agree in.
        unit: what counts once in mean and deviation. "trajectory": each trajectory once. "row": long
            trajectories weigh more, as in several public trainers. "token": more still.
        ddof: 1 is the sample deviation of public code, 0 the population's.
        singleton: what a trajectory without peers gets: 0, its raw return, or an error.
        zero_variance: "zero" gives exactly 0 in groups of equal returns; "keep" what rounding leaves.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two members.
    Differs from the authors' code: a lone trajectory gets 0, not its raw return (`singleton="raw"`).

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "b", "c"], agent=["x"] * 3, turn=[0, 0, 0],
    ...                   reward=[0, 1, 2])
    >>> grpo(table, scale="none").tolist()
    [-1.0, 0.0, 1.0]
    """
    return standardize(
        total_return(table),
        by=table.key(*by),
        unit=table.unit(unit),
        scale=scale,
        ddof=ddof,
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
