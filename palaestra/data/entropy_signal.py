"""Sampling temperatures that follow the entropy of what is about to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class EntropyTemperature(Protocol):
    """A rule that changes the temperature of each token by its entropy. Equal rules are equal objects, and hashable."""

    def factor(self, entropy: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """What the temperature is multiplied by, float64 (tokens,); the entropy is that at the temperature itself."""
        ...


def factors(rules: Sequence[EntropyTemperature | None], entropy: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Each row's factor of its temperature, float64 (rows,): 1 where a row has no rule."""
    out = torch.ones(len(entropy), dtype=torch.float64)
    for rule in {rule for rule in rules if rule is not None}:
        own = torch.tensor([other == rule for other in rules])
        out[own] = rule.factor(entropy[own].cpu())
    return out
