"""POAD's advantage: temporal differences over tokens, discounted between actions and never inside one."""

from __future__ import annotations

from palaestra.algebra import Credit, lambda_return, whitened
from palaestra.data import StepTable
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "poad",
    reads=("value_old", "terminated?", "truncated?", "bootstrap_value?"),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2405.15821",
)
def poad(
    table: StepTable,
    *,
    gamma: Fraction = 0.95,
    lam: Fraction = 0.95,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation with the Bellman backup of action decomposition.

        inside action k         δ_{k,j} = V_{k,j+1} − V_{k,j}                    A_{k,j} = δ + lam · A_{k,j+1}
        at its last token n_k   δ_{k,n} = r_k + gamma · V_{k+1,1} − V_{k,n}      A_{k,n} = δ + gamma · lam · A_{k+1,1}

    A long text of an action is then worth as much as a short one, and the optimum over tokens is the optimum over whole
    actions. Targets of the critic are A + V.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count; value_old (tokens,);
            bootstrap_value (rows,) where a trajectory is truncated.
        gamma: in [0, 1], per action. Higher: late rewards reach early actions. Usual: 0.95–0.99.
        lam: in [0, 1], per token. Higher: less bias, more variance; 1 gives gamma^(K − k) · R as the target of
            every token of action k, for a reward R at the end of action K. Usual: 0.95.
        whiten: standardize advantages over the tokens of the batch; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values.

    Returns: Credit of float32 (tokens,); target NaN on tokens of agents without a critic.
    Raises: MissingColumn, without token values or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: advantages are standardized over the batch, not over each mini-batch.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="token", gamma_in=1.0, by=chain)
    return whitened(estimate) if whiten else estimate
