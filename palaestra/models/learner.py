"""A learner: parameters, their optimizer and a bound on the gradient, for parts that learn beside the policy.

Knows parameters and gradients. Knows no loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Learner:
    """AdamW without weight decay. A gradient that is not finite moves nothing.

    Args:
        parameters: what learns; those without gradient stay.
        lr: learning rate. clip: largest norm of the whole gradient.
    """

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, clip: float) -> None:
        self.parameters, self.clip = [p for p in parameters if p.requires_grad], clip
        self.inner = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0, fused=True)

    def zero(self) -> None:
        """Forget the gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Move the parameters. Returns the gradient's norm before clipping."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if math.isfinite(float(norm)):
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
            self.inner.step()
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, without the parameters."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.inner.load_state_dict(state)
