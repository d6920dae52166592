"""Dr. MAS: in a team, every agent is compared with its own statistics.

Knows rewards, groups and agents. Knows nothing of turns, tokens or models.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import Key, StepTable, segment_mean, standardize, total_return
from palaestra.registry import Columns, Degrees, NonNegative, Scale, Singleton, Unit, ZeroVariance, register


@register("advantage", "dr_mas", uses=("group",), source="arXiv 2602.08847")
def dr_mas(
    table: StepTable,
    *,
    scale: Scale = "std",
    by: Columns = ("group", "agent"),
    unit: Unit = "row",
    returns: Columns = ("trajectory",),
    penalty: NonNegative = 0.0,
    ddof: Degrees = 1,
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Standardize the return over the rows of the same group and agent.

        s_r = R_r − penalty · invalid_r
        A_r = (s_r − mean of s over rows of this agent in the group) / (their deviation + 1e-6)

    Under one baseline for all, the mean square advantage of an agent with mean μ_a and deviation σ_a is
    (σ_a² + (μ_a − μ)²)/σ², which has no bound; under its own it is 1.

    Args:
        table: columns group, trajectory, agent, reward, each (rows,); with a penalty also invalid, 1 where a
            response could not be read; absent, if none was.
        scale: "std" divides by the deviation; "none" only centers.
        by: ("group",) is the same estimator without the agents' own statistics: the missing ablation.
            ("group", "agent", "turn") compares calls of one turn only, as AT-GRPO does (arXiv 2510.11062).
        unit: "row": an agent that acts twice in a trajectory counts twice; "trajectory": once, and the price of an
            unreadable response is spread over its rows. Where `returns` tell agents apart, each agent's return counts
            once a trajectory.
        returns: whose rewards a return sums; ("trajectory", "agent") gives each agent its own.
        penalty: ≥ 0, what an unreadable response costs its own row and no other. Higher: formats are learned sooner.
            Usual: 0.01 for searches, 0.1 for mathematics.
        ddof, singleton, zero_variance: as in `grpo`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no agent has two rows in any group.
    Differs from the authors' code: a lone row gets 0, not its raw return (`singleton="raw"`); padding
        has weight 0, where theirs repeats rows at random.
    """
    key, own = table.key(*by), table.unit(unit) if unit != "trajectory" else table.key("trajectory", *returns)
    score = total_return(table, by=returns)
    if penalty > 0 and "invalid" in table:
        once = None if own is None or unit == "token" else key & own
        score = (score.double() - penalty * _shared(table["invalid"].double(), once)).float()
    return standardize(
        score,
        by=key,
        unit=own,
        scale=scale,
        ddof=ddof,
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )


def _shared(values: Float[Tensor, " rows"], once: Key | None) -> Float[Tensor, " rows"]:
    """Each row's own, or the mean over the rows that count as one."""
    return values if once is None else segment_mean(values, by=once)[once.codes]
