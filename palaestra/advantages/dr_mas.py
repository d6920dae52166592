"""Dr. MAS: in a team, every agent is compared with its own statistics.

Knows rewards, groups and agents. Knows nothing of turns, tokens or models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, standardize, total_return
from palaestra.registry import Columns, Degrees, Scale, Singleton, Unit, ZeroVariance, register


@register("advantage", "dr_mas", uses=("group",), source="arXiv 2602.08847")
def dr_mas(
    table: StepTable,
    *,
    scale: Scale = "std",
    by: Columns = ("group", "agent"),
    unit: Unit = "row",
    returns: Columns = ("trajectory",),
    ddof: Degrees = 1,
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Standardize the return over the rows of the same group and agent.

        A_r = (R_r − mean of R over rows of this agent in the group) / (their deviation + 1e-6)

    Under one baseline for all, the mean square advantage of an agent with mean μ_a and deviation σ_a is
    (σ_a² + (μ_a − μ)²)/σ², which has no bound; under its own it is 1.

    Args:
        table: columns group, trajectory, agent, reward, each (rows,).
        scale: "std" divides by the deviation; "none" only centers.
        by: ("group",) is the same estimator without the agents' own statistics: the missing ablation.
        unit: "row": an agent that acts twice in a trajectory counts twice; "trajectory": once.
        returns: whose rewards a return sums; ("trajectory", "agent") gives each agent its own.
        ddof, singleton, zero_variance: as in `grpo`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no agent has two rows in any group.
    Differs from the authors' code: a lone row gets 0, not its raw return (`singleton="raw"`); a penalty for an
        invalid action is part of the return and so shared by the whole trajectory.
    """
    return standardize(
        total_return(table, by=returns),
        by=table.key(*by),
        unit=table.unit(unit),
        scale=scale,
        ddof=ddof,
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
