"""Value heads for language models."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Value estimate per token, zero before training.

        V_t = w · f(h_t) + b,   w = 0 and b = 0 at the start;   f: layers of `widths` with ReLU, or the identity

    So the values of a new critic are 0, and its advantages are plain returns.

    Args:
        hidden: width of the model's hidden states.
        widths: of the layers between states and value. Use some for a critic that may not change the model below.
        seed: for the initial weights of these layers; the global random state does not change.
    """

    def __init__(self, hidden: int, *, widths: tuple[int, ...] = (), seed: int = 0) -> None:
        super().__init__()
        sizes = (hidden, *widths)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            pairs = zip(sizes, sizes[1:], strict=False)
            self.layers = nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())))
            self.linear = nn.Linear(sizes[-1], 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states (…, hidden) to values (…)."""
        return self.linear(self.layers(states)).squeeze(-1)  # type: ignore[no-any-return]
