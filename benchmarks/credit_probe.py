"""Where an update's gradient comes from: a filter that changes nothing and looks at what advantages would do.

For environments with an approach (`rooms` with a porch or a corridor). In a recipe, behind the estimator:
`advantage=[grpo, benchmarks/credit_probe.py:CreditProbe]`. It logs, at every iteration,

    probe/outside_gradient   |Σ A ∇ log π| over the steps before the house, per step of the batch
    probe/house_gradient     the same over the steps in the house
    probe/outside_share      the first over the sum of both
    probe/outside_entropy    the policy's mean entropy before the house: how undecided it stays where all is equal
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from palaestra.data import Batch, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart

OUTSIDE = ("porch", "dark corridor")  # words of an observation before the house


class CreditProbe(StatefulPart):
    """Keeps the advantage as it is; measures the gradient it gives to steps before the house and in it."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None

    def __call__(self, table: StepTable, advantage: Tensor, iteration: Iteration) -> Tensor:
        self.seen = table.per_token(advantage)
        return advantage

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        table = batch.table
        assert self.seen is not None
        policy = iteration.policies["main"]
        samples = iteration.samples("main")
        now = policy.forward(samples, range(len(samples.cost)), ("logprob", "entropy"))
        index = torch.as_tensor(samples.token_index)
        outside = torch.tensor(
            [any(word in (row.step.observation.text or "") for word in OUTSIDE) for row in iteration.rows]
        )
        here = outside[table.token_row][index]
        norms = {}
        for place, chosen in (("outside", here), ("house", ~here)):
            total = (self.seen[index] * now["logprob"])[chosen].sum() / len(table)
            pieces = torch.autograd.grad(total, list(policy.module.parameters()), retain_graph=True, allow_unused=True)
            norms[place] = math.sqrt(sum(float(piece.double().square().sum()) for piece in pieces if piece is not None))
        assert now["entropy"] is not None
        return {
            "probe/outside_gradient": norms["outside"],
            "probe/house_gradient": norms["house"],
            "probe/outside_share": norms["outside"] / max(norms["outside"] + norms["house"], 1e-12),
            "probe/outside_entropy": float(now["entropy"][here].mean().detach()) if bool(here.any()) else 0.0,
        }
