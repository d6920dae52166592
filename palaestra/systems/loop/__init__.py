"""LOOP (arXiv 2502.01600) trains agents in long interactive tasks with several updates per batch, without a critic
and without a reference model. The baseline of a trajectory is the mean return of the others in its group.
Trajectories near their baseline are left out, and the ratio of each token is clipped to the range from 1/(1+ε) to
1+ε. Here the estimator also raises an error if the log-probabilities of sampler and trainer differ too much.
AppWorld, the paper's environment of stateful APIs, and its update before the slowest rollouts are finished are not
here. This file is the estimator; the loss is `ppo_clip` with `form: multiplicative` in `palaestra/parts/losses.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_count, segment_std, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, Scale, register

FLOOR = 1e-7  # of a deviation, instead of a number added to it


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
    """RLOO's advantage; trajectories near their baseline are left out.

        A_i = R_i − mean of R over the other trajectories of the group        0 where |A_i| < threshold

    The method's other half is its loss: `ppo_clip` with the range [1/(1+ε), 1+ε], ε = 0.1, over several epochs.

    Args:
        table: columns group, trajectory, reward, each (rows,).
        threshold: ≥ 0. Higher: fewer trajectories in the update. Usual: 0.01.
        scale: "std" divides by the group's population deviation, at least 1e-7: the paper's ablation, which loses.
        largest_gap: > 0, in nats. The mean difference per token between the log-probabilities that the sampler
            recorded and the trainer's own before the update, where both are there. Beyond it, the ratios of the
            loss would mean nothing. Exact engines: 0.1.
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
    if "logprob_behavior" not in table or "logprob_old" not in table:
        return
    gap = (table["logprob_behavior"].double() - table["logprob_old"]).abs()
    gap = gap[gap.isfinite() & (table.row_weight > 0)[table.token_row]]
    if len(gap) and float(gap.mean()) > largest:
        raise InvalidData(
            where="advantage: loop",
            what=f"sampler and trainer differ by {float(gap.mean()):.3g} nats a token before the update; "
            f"at most {largest:g} are allowed.",
            remedy="Check that both use the same weights, temperature and tokens; or raise `largest_gap`.",
        )
