"""GRPO with step rewards: standardize every step's reward first, then sum what is still to come.

Knows rewards, groups and turns. Knows nothing of tokens or models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, reward_to_go, standardize
from palaestra.registry import Columns, Degrees, Scale, Singleton, ZeroVariance, register


@register("advantage", "grpo_process", uses=("group",), source="arXiv 2402.03300, process supervision")
def grpo_process(
    table: StepTable,
    *,
    scale: Scale = "std",
    by: Columns = ("group",),
    ddof: Degrees = 1,
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Credit a step with the standardized step rewards from it to the end of its trajectory.

        z_k = (r_k − mean of r over all rows of the group) / (deviation of r over them + 1e-6)
        A_k = z_k + A_{k+1}

    For environments that reward steps. With one reward at the end every other step's z is a small
    negative number, and longer trajectories pay for each.

    Args:
        table: columns group, trajectory, turn, reward, each (rows,).
        scale: "std" divides by the deviation; "none" only centers.
        by, ddof, singleton, zero_variance: as in `grpo`; here each row counts once.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two rows.
    """
    standard = standardize(
        table["reward"],
        by=table.key(*by),
        scale=scale,
        ddof=ddof,
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
    return reward_to_go(table, gamma=1.0, reward=standard)
