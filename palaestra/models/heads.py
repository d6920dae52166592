"""Heads that read a language model's last hidden states. Know nothing of the model below them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Value estimate per token, zero before training.

        V_t = w · f(h_t) + b,   w = 0 and b = 0 at the start;   f: layers of `widths` with ReLU, or the identity

    so that a fresh critic neither helps nor harms: its advantages are plain returns.

    Args:
        hidden: width of the model's hidden states.
        widths: of the layers between. More: for a critic that may not move the model below.
        seed: for their initial weights; the global random state is left as it was.
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
