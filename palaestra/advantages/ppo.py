"""PPO's credit: generalized advantage estimation with a critic, at the level of turns or of tokens.

Knows rewards, values and time. Knows nothing of the critic's network.
"""

from __future__ import annotations

from typing import Literal

from palaestra.data import Estimate, StepTable, lambda_return
from palaestra.data import whiten as whiten_units
from palaestra.registry import Columns, Fraction, register


@register("advantage", "ppo", uses=("critic",), source="arXiv 1707.06347, arXiv 1506.02438")
def ppo(
    table: StepTable,
    *,
    level: Literal["row", "token"] = "row",
    gamma: Fraction = 0.99,
    lam: Fraction = 0.95,
    gamma_in: Fraction | None = None,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Estimate:
    """Temporal differences of the critic's values, summed with weight (gamma · lam)^distance.

        δ_u = r_u + gamma · V_{u+1} − V_u       A_u = δ_u + gamma · lam · A_{u+1}       target_u = A_u + V_u

    V_{u+1} is 0 after a terminated row and the value of the next observation after a truncated one.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated; value (rows,) at level "row",
            token_value (tokens,) at level "token"; value_end (rows,) where a trajectory is truncated.
        level: the unit of time. "row": one value and one advantage a step. "token": each response token.
        gamma: in [0, 1]. Higher: late rewards reach early units. Usual: rows 0.9–0.99, tokens 1.
        lam: in [0, 1]. Higher: less bias, more variance; 1 is reward to go − V. Usual: 0.95.
        gamma_in: discount between the tokens of one row, at level "token"; None: gamma.
        whiten: standardize advantages over the units of the batch; targets stay as they are.
        chain: rows that agree in these columns follow each other in time; each agent has its own values. Where
            sub-agents are called, ("trajectory", "agent", "invocation") keeps each call to itself.

    Returns: Estimate of float32 (rows,) or (tokens,); target NaN on rows of agents without a critic.
    Raises: MissingColumn, without a critic or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level=level, gamma_in=gamma_in, by=chain)
    if not whiten:
        return estimate
    judged = estimate.target.isfinite()
    return Estimate(whiten_units(estimate.advantage, weight=judged), estimate.target)
