"""A filter: in the first iterations the critic learns alone.

Knows the number of the iteration. Knows nothing of the critic's network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.data.protocols import Look
from palaestra.registry import PositiveInt, register


@register("advantage", "critic_warmup", uses=("critic",), source="arXiv 2508.04280; arXiv 2510.12693, public code")
class CriticWarmup:
    """Advantages of 0 before iteration `iterations`, and as they are from then on.

    The critic's targets stand from the beginning. In a body that policy and critic share, the value loss still moves
    what both read; `critic_gradient: false` of the language policy prevents that.

    Args:
        iterations: > 0. Higher: the policy waits for better values. Usual: 3.
    """

    def __init__(self, *, iterations: PositiveInt = 3) -> None:
        self.iterations = iterations
        self.warming = True

    def __call__(self, table: StepTable, advantage: Tensor, look: Look) -> Tensor:
        self.warming = look.step < self.iterations
        return torch.zeros_like(advantage) if self.warming else advantage

    def state_dict(self) -> dict[str, Any]:
        return {"warming": self.warming}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.warming = bool(state["warming"])
