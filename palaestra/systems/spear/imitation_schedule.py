"""The weights `imitation_schedule`: replayed episodes count more and more beside fresh ones."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Iteration, StepTable
from palaestra.registry import NonNegative, PositiveInt, register
from palaestra.systems.spear.schedules import rise


@register(
    "weights",
    "imitation_schedule",
    reads=("anchored",),
    writes=("weight", "counts"),
    source="arXiv 2509.22601, public code",
)
def imitation_schedule(
    table: StepTable, iteration: Iteration, *, coefficient: NonNegative = 1.0, horizon: PositiveInt = 200
) -> Float[Tensor, " rows"]:
    """The weight of the second batch in L = L_fresh + c · rise(s) · L_replayed.

        w = c · (1 − cos(π s / horizon)) / 2    on rows of the second batch in iteration s up to the horizon, then c
        w = 1                                   on fresh rows

    The sum is exact where a loss is not divided by the number of its tokens or episodes, as with the aggregation
    `sequence-sum-norm` of the method; other aggregations divide by the number of fresh and replayed ones together.

    Args:
        table: column anchored (rows,), 1 on the second batch; absent if there is none.
        coefficient: c ≥ 0. Higher: stronger imitation. 0 is the base method, bit for bit. Usual: 1.
        horizon: iterations until imitation has its full weight. Usual: 100–300.

    Returns: float32 (rows,).
    Metrics: imitation/weight, the weight of the second batch in this iteration.
    """
    weight = coefficient * rise(iteration.number, horizon)
    iteration.metrics["imitation/weight"] = weight
    if "anchored" not in table:
        return torch.ones(len(table))
    return torch.where(table["anchored"] > 0, weight, 1.0).float()
