"""Sampling temperatures that depend on the entropy of the next token's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class EntropyTemperature(Protocol):
    """A rule that changes the temperature of each token by its entropy. Rules are hashable and compare by value."""

    def factor(self, entropy: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """The factor of each token's temperature, float64 (tokens,), from its entropy at the unchanged temperature."""
        ...


def factors(rules: Sequence[EntropyTemperature | None], entropy: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The factor of each row's temperature, float64 (rows,): 1 for a row without a rule."""
    out = torch.ones(len(entropy), dtype=torch.float64)
    for rule in {rule for rule in rules if rule is not None}:
        own = torch.tensor([other == rule for other in rules])
        out[own] = rule.factor(entropy[own].cpu())
    return out
