"""VL-DAC: a critic of whole steps for an actor of single tokens.

Knows rewards, one value a step and time. Knows nothing of the critic's network and of the loss's ratios.
"""

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

    V_k is read at the end of the step's prompt, before its first token. Together with a loss whose ratio and clip are
    those of single tokens, no weight between thought and action tokens has to be tuned.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, value (rows,); bootstrap_value (rows,)
            where a trajectory is truncated.
        gamma: in [0, 1], per step; nothing is discounted inside a step. Higher: late rewards reach early steps.
            Usual: 0.9.
        lam: in [0, 1]. Higher: less bias, more variance. Usual: 0.95.
        whiten: (A − mean) / (deviation + 1e-8) over the steps of the batch; targets stay as they are.
        chain: rows that agree in these columns follow each other in time; each agent has its own values.

    Returns: Credit of float32 (rows,); target NaN on rows of agents without a critic.
    Raises: MissingColumn, without values or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: a step cut off by a time limit bootstraps from `bootstrap_value`; there it gets
        advantage 0.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="row", by=chain)
    return whitened(estimate, floor="deviation") if whiten else estimate
