"""The probe of gradients: (1) it changes no advantage; (2) it tells gradients of steps before the house from those in
it; (3) without signal before the house its share is 0.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.credit_probe import CreditProbe
from palaestra.data import Batch, StepTable
from palaestra.data.protocols import PolicyOutputs

TEXTS = ("you start. porch 1. the way on is east.", "you went on. hall. exits north.", "key taken. hall. exits north.")


class Weights:
    """A policy with one weight for each of its three steps."""

    def __init__(self) -> None:
        self.module = torch.nn.Linear(3, 1, bias=False)

    def forward(self, samples: Any, which: Any, outputs: Any) -> PolicyOutputs:
        logprob = self.module.weight[0] * torch.tensor([1.0, 2.0, 2.0])
        return PolicyOutputs(columns={"logprob": logprob, "entropy": torch.tensor([0.5, 0.1, 0.1])})


def probed(advantage: Tensor) -> dict[str, float]:
    table = StepTable(group=["g"] * 3, trajectory=["a"] * 3, agent=["player"] * 3, turn=[0, 1, 2], reward=[0.0] * 3)
    steps = [SimpleNamespace(step=SimpleNamespace(observation=SimpleNamespace(text=text))) for text in TEXTS]
    samples = SimpleNamespace(cost=np.ones(3, np.int64), token_index=np.arange(3))
    iteration: Any = SimpleNamespace(rows=steps, policies={"main": Weights()}, samples=lambda name: samples)
    probe = CreditProbe()
    assert torch.equal(probe(table, advantage, iteration), advantage)  # rule 1
    return probe.update(Batch.of((), table), iteration)


def test_gradients_by_place() -> None:  # rule 2
    found = probed(torch.tensor([3.0, 3.0, 4.0]))
    assert round(found["probe/outside_gradient"], 4) == 1.0  # 3 · 1 / 3 rows
    assert round(found["probe/house_gradient"], 4) == 3.3333  # √(6² + 8²) / 3
    assert round(found["probe/outside_share"], 4) == 0.2308
    assert found["probe/outside_entropy"] == 0.5


def test_no_signal_outside() -> None:  # rule 3
    assert probed(torch.tensor([0.0, 3.0, 4.0]))["probe/outside_share"] == 0.0
