"""The neutral reward: what the environment gave."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import register


@register("reward", "environment")
def environment(table: StepTable) -> Float[Tensor, " rows"]:
    """The reward column as it is: float32 (rows,)."""
    return table["reward"]
