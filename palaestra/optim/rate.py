"""The learning rate over a run, and the gradient's norm: what every optimizer does alike.

Knows numbers of steps and gradients. Knows no update rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from palaestra.errors import RecipeError

Decay = Literal["constant", "linear", "cosine"]
Count = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate that warms up and decays.

    Attributes:
        highest: reached after warm-up. warmup: steps in which it rises evenly from highest / warmup.
        decay: after warm-up; "linear" and "cosine" reach 0 at `total_steps`, which they need.
        owner: of the optimizer, for messages.

    Raises: RecipeError, for a decay without `total_steps` or a warm-up that is not shorter.
    """

    highest: float
    warmup: int
    decay: Decay
    total_steps: int | None
    owner: str

    def __post_init__(self) -> None:
        if self.decay != "constant" and (self.total_steps is None or self.total_steps <= self.warmup):
            raise RecipeError(
                where=f"optimizer: {self.owner}",
                what=f"`decay: {self.decay}` with total_steps {self.total_steps} and warmup {self.warmup}.",
                remedy="Give `total_steps` (iterations × epochs × minibatches), more than `warmup`.",
            )

    def at(self, steps: int) -> float:
        """The rate after so many steps."""
        rate = self.highest * min(1.0, (steps + 1) / max(self.warmup, 1))
        if self.total_steps is None or self.decay == "constant" or steps < self.warmup:
            return rate
        done = min(1.0, (steps - self.warmup) / (self.total_steps - self.warmup))
        return rate * (1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2)


def bounded_gradient(parameters: Sequence[Tensor], largest: float | None) -> float:
    """Scale all gradients down to a norm of at most `largest` (None: leave them). Returns the norm before.

    Nothing is scaled where the norm is not finite.
    """
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if largest is not None and math.isfinite(float(norm)):
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return float(norm)
