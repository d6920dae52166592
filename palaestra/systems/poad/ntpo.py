"""NTPO's advantage: temporal differences over tokens, discounted at every token."""

from __future__ import annotations

from palaestra.algebra import Credit, lambda_return, whitened
from palaestra.data import StepTable
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "ntpo",
    reads=("value_old", "terminated?", "truncated?", "bootstrap_value?"),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2405.15821, the comparator in its public code",
)
def ntpo(
    table: StepTable,
    *,
    gamma: Fraction = 0.95,
    lam: Fraction = 0.95,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation in which every token is a time step.

        δ_u = r_u + gamma · V_{u+1} − V_u        A_u = δ_u + gamma · lam · A_{u+1}        target_u = A_u + V_u

    A reward n tokens away is worth gamma^n of itself, so with gamma < 1 the policy learns to prefer the shorter texts
    of the same action. It is here for comparison; with gamma = 1 it is token-level PPO.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count; value_old (tokens,);
            bootstrap_value (rows,) where a trajectory is truncated.
        gamma: in [0, 1], per token. Higher: late rewards reach early tokens, and long actions lose less. Usual: 0.95–1.
        lam: in [0, 1], per token. Higher: less bias, more variance. Usual: 0.95.
        whiten: standardize advantages over the tokens of the batch; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values.

    Returns: Credit of float32 (tokens,); target NaN on tokens of agents without a critic.
    Raises: MissingColumn, without token values or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: advantages are standardized over the batch, not over each mini-batch.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="token", gamma_in=gamma, by=chain)
    return whitened(estimate) if whiten else estimate
