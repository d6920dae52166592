"""PPR's advantage: token-level temporal differences of rewards that join a judge's scores with the outcome."""

from __future__ import annotations

from palaestra.algebra import Credit, lambda_return, whitened
from palaestra.data import StepTable
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "ppr",
    reads=("value_old", "terminated?", "truncated?", "bootstrap_value?"),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2509.25598",
)
def ppr(
    table: StepTable,
    *,
    gamma: Fraction = 1.0,
    lam: Fraction = 1.0,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Subtract the critic's value from the reward to go, at every token.

        δ_u = r_u + gamma · V_{u+1} − V_u        A_u = δ_u + gamma · lam · A_{u+1}        target_u = A_u + V_u

    r_u is the row's reward, on its last token. A constant added to the reward of every step adds that constant times
    the remaining steps to the return, so with rewards of `renorm` the return depends on the length.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count; value_old (tokens,);
            bootstrap_value (rows,) where a trajectory is truncated.
        gamma: in [0, 1], per token. Lower: late rewards count less. Usual: 1.
        lam: in [0, 1], per token. Lower: more bias, less variance. Usual: 1.
        whiten: standardize advantages over the tokens of the batch; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values.

    Returns: Credit of float32 (tokens,); target NaN on tokens of agents without a critic.
    Raises: MissingColumn, without token values or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: gamma = lam = 1 is the practice of search agents; the paper names no value.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="token", by=chain)
    return whitened(estimate) if whiten else estimate
