"""Heads that read a language model's last hidden states. Know nothing of the model below them."""

from __future__ import annotations

from torch import Tensor, nn


class ValueHead(nn.Module):
    """Linear value estimate per token, zero before training.

        V_t = w · h_t + b,   w = 0 and b = 0 at the start

    so that a fresh critic neither helps nor harms: its advantages are plain returns.

    Args:
        hidden: width of the model's hidden states.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states (…, hidden) to values (…)."""
        return self.linear(states).squeeze(-1)  # type: ignore[no-any-return]
