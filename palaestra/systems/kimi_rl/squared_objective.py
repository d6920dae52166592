"""The squared objective of Kimi K1.5 and K2: a regression of a trajectory's log-ratio on its advantage."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import kl_estimate, segment_count
from palaestra.algebra.aggregation import unit_key
from palaestra.data import TokenBatch
from palaestra.registry import Positive, register
from palaestra.registry.clashes import Clash, SettingPattern


@register(
    "loss",
    "squared_objective",
    reads=("advantage", "logprob", "logprob_old", "weight"),
    scope="trajectory",
    every_token=True,
    source="arXiv 2507.20534; arXiv 2501.12599",
    clashes=(
        Clash(
            other=SettingPattern(
                key="aggregate.how",
                values=("token-mean", "group-mean", "agent-mean", "sequence-mean", "step-mean", "trajectory-step-mean"),
            ),
            why="It squares one number per trajectory, and this average would weigh trajectories by their lengths.",
            ways="Set aggregate.how=sequence-sum, the mean over trajectories.",
        ),
    ),
)
def squared_objective(
    batch: TokenBatch, *, temperature: Positive = 0.1
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """(A_i − temperature · log ρ_i)² of a trajectory, spread evenly over its tokens.

        log ρ_i = Σ over the trajectory's tokens of (logprob − logprob_old)
        gradient of the mean over N trajectories: −2/N · temperature · (A_i − temperature · log ρ_i) · Σ ∇ logprob

    This is a policy gradient with A_i = R_i − the group's mean (`dr_grpo`), and a pull back to the old policy that
    grows with the distance. Its minimum over all policies is the old policy times exp(R / temperature), normalized.
    Nothing is clipped. Aggregate with sequence-sum, the mean over trajectories.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, trajectory, each (tokens,). The advantage of a
            trajectory is the mean over its tokens that count.
        temperature: > 0, the cost of leaving the old policy. Higher: smaller steps. It is a factor of the gradient, so
            a small temperature needs a larger learning rate. Usual: 0.1–1.

    Returns: loss (tokens,) and, per token, policy/log_ratio of its trajectory and policy/kl (k3 to the old policy).
    Raises: ContractError, if the batch cuts a trajectory.
    """
    counts = batch["weight"] > 0
    key = unit_key(batch, "trajectory", where="loss: squared_objective")
    size = segment_count(by=key).clamp_min(1.0).to(batch["logprob"].dtype)
    log_ratio = _sum(torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0), key.codes, key.size)
    advantage = _sum(torch.where(counts, batch["advantage"], 0.0), key.codes, key.size) / size
    square = (advantage - temperature * log_ratio).square()
    metrics = {
        "policy/log_ratio": log_ratio[key.codes].detach(),
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
    }
    return (square / size)[key.codes], metrics


def _sum(values: Tensor, codes: Tensor, size: int) -> Tensor:
    """The sum over each trajectory's tokens, with gradient."""
    return values.new_zeros(size).index_add(0, codes, values)
