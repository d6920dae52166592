"""The estimator `vl_dac`: values of whole environment steps for a policy gradient on single tokens."""

from __future__ import annotations

from palaestra.algebra import Credit, lambda_return, whitened
from palaestra.data import StepTable
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "vl_dac",
    reads=("row_value", "terminated?", "truncated?", "bootstrap_value?"),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2508.04280",
)
def vl_dac(
    table: StepTable,
    *,
    gamma: Fraction = 0.9,
    lam: Fraction = 0.95,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation over environment steps; every token of step k gets A_k.

        δ_k = r_k + gamma · V_{k+1} − V_k        A_k = δ_k + gamma · lam · A_{k+1}        target_k = A_k + V_k

    V_k is the critic's value at the end of the step's prompt, before its first token. With a loss whose ratio and clip
    are per token, no weight between thought and action tokens has to be tuned.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, row_value (rows,); bootstrap_value
            (rows,) where a trajectory is truncated.
        gamma: in [0, 1], per step; nothing is discounted inside a step. Higher: late rewards reach early steps. Usual:
            0.9.
        lam: in [0, 1]. Higher: less bias, more variance. Usual: 0.95.
        whiten: (A − mean) / (deviation + 1e-8) over the steps of the batch; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values.

    Returns: Credit of float32 (rows,); target NaN on rows of agents without a critic.
    Raises: MissingColumn, without values or end flags; InvalidData, for values that are not finite, or a trajectory
        whose last row is neither terminated nor truncated.
    Differs from the authors' code: a step truncated by a time limit bootstraps from `bootstrap_value`; there it gets
        advantage 0.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="row", by=chain)
    return whitened(estimate, floor="deviation") if whiten else estimate
