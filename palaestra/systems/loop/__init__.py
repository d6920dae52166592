"""LOOP (arXiv 2502.01600) trains agents in long interactive tasks with several updates per batch, without a critic and
without a reference model. The baseline of a trajectory is the mean return of the others in its group. Trajectories near
their baseline are left out, and the ratio of each token is clipped to the range from 1/(1+ε) to 1+ε. Here the estimator
also raises an error if the log-probabilities of sampler and trainer differ too much. AppWorld, the paper's environment
of stateful APIs, and its update before the slowest rollouts are finished are not here. This file is the estimator; the
loss is `ppo_clip` with `form: multiplicative` in `palaestra/parts/losses.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_count, segment_std, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, Scale, register

FLOOR = 1e-7  # the smallest deviation that divides; nothing is added to the deviation


@register(
    "advantage",
    "loop",
    reads=("logprob_behavior?", "logprob_old?"),
    writes=("advantage",),
    uses=("group",),
    first=("threshold", "scale", "by", "singleton", "zero_variance"),
    source="arXiv 2502.01600",
)
def loop(
    table: StepTable,
    *,
    threshold: NonNegative = 0.01,
    scale: Scale = "none",
    largest_gap: Positive = 2.0,
    peers: Peers = Peers(fixed=("unit", "ddof")),
) -> Float[Tensor, " rows"]:
    """Subtract the mean return of the group's other trajectories; advantages near 0 become 0.

        A_i = R_i − mean of R over the other trajectories of the group        0 where |A_i| < threshold

    The method's loss is `ppo_clip` with the range [1/(1+ε), 1+ε], ε = 0.1, over several epochs.

    Args:
        table: columns group, trajectory, reward, each (rows,).
        threshold: ≥ 0. Higher: fewer trajectories in the update. Usual: 0.01.
        scale: "std" divides by the group's population deviation, at least 1e-7. This is an ablation of the paper, in
            which "none" is better.
        largest_gap: > 0, in nats. An error is raised if the log-probabilities of sampler and trainer differ by more, on
            average over tokens, where the table has both; the ratios of the loss would then mean nothing. Usual: 0.1
            for exact engines.
        peers: by, singleton and zero_variance of `Peers`; each trajectory counts once.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories or if sampler and trainer disagree.
    """
    _refuse_mismatch(table, largest_gap)
    key, returns = table.key(*peers.by), total_return(table)
    advantage = peers.standardize(returns, table, center="leave_one_out")
    if scale == "std":
        own = table.key(*peers.by, "trajectory")
        counts = (table.row_weight > 0).double()
        once = counts / segment_count(by=Key(own.codes, own.size, (), counts))[own.codes].clamp_min(1.0)
        deviation = segment_std(returns, by=Key(key.codes, key.size, (), once), ddof=0)[key.codes]
        advantage = (advantage / deviation.clamp_min(FLOOR)).float()
    return torch.where(advantage.abs() < threshold, 0.0, advantage)


def _refuse_mismatch(table: StepTable, largest: float) -> None:
    """Raise InvalidData if the log-probabilities of sampler and trainer differ by more than `largest` per token."""
    if "logprob_behavior" not in table or "logprob_old" not in table:
        return
    gap = (table["logprob_behavior"].double() - table["logprob_old"]).abs()
    gap = gap[gap.isfinite() & (table.row_weight > 0)[table.token_row]]
    if len(gap) and float(gap.mean()) > largest:
        raise InvalidData(
            where="advantage: loop",
            what=f"the log-probabilities of sampler and trainer differ by {float(gap.mean()):.3g} nats a token before "
            f"the update; at most {largest:g} are allowed.",
            remedy="Check that both use the same weights, temperature and tokens, or raise `largest_gap`.",
        )
