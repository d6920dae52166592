"""How much replayed episodes count beside fresh ones: nothing at first, all of it later.

Knows which rows are replayed, and the iteration. Knows nothing of what was stored or why.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.data.iteration import Iteration
from palaestra.registry import NonNegative, PositiveInt, register
from palaestra.systems.spear.schedules import rise


@register(
    "weights",
    "imitation_schedule",
    reads=("anchored",),
    writes=("weight", "counts"),
    source="arXiv 2509.22601, public code",
)
class ImitationSchedule:
    """The weight of the second batch in L = L_fresh + c · rise(s) · L_replayed.

        w = c · (1 − cos(π s / horizon)) / 2    on rows of the second batch in iteration s up to the horizon, then c
        w = 1                                   on fresh rows

    The sum is exact where a loss is not divided by the number of its tokens or episodes, as with the aggregation
    `sequence-sum-norm` of the method; other aggregations divide by fresh and replayed ones together.

    Args:
        coefficient: c ≥ 0. Higher: stronger imitation. 0 is the base method, bit for bit. Usual: 1.
        horizon: iterations until imitation counts fully. Usual: 100–300.

    Called with a table, column anchored (rows,), 1 on the second batch, absent where there is none, it returns float32
    (rows,).
    """

    def __init__(self, *, coefficient: NonNegative = 1.0, horizon: PositiveInt = 200) -> None:
        self._coefficient, self._horizon = coefficient, horizon

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        if "anchored" not in table:
            return torch.ones(len(table))
        return torch.where(
            table["anchored"] > 0, self._coefficient * rise(iteration.number, self._horizon), 1.0
        ).float()

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
        """The present weight."""
        return {"imitation/weight": self._coefficient * rise(iteration.number, self._horizon)}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the schedule goes by the number of the iteration."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""
