"""What must hold of heads: (1) a fresh value head says 0 everywhere; (2) it is linear in the hidden state."""

from __future__ import annotations

import torch

from palaestra.models.heads import ValueHead


def test_fresh_values_are_zero():  # rule 1
    values = ValueHead(8)(torch.randn(2, 5, 8))
    assert values.shape == (2, 5) and not values.any()


def test_values_are_linear():  # rule 2
    head = ValueHead(3)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
        head.linear.bias.fill_(0.5)
    assert head(torch.tensor([1.0, 0.0, -1.0])).item() == -1.5
