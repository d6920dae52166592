"""Which results of an iteration have come back when the update is made: parts for studies of durations.

An act of duration dt arrives with probability shortest / dt, so that results come back at a rate π(a) / dt(a), as from
slots that are reserved for each act. What has not arrived is left out of the update.
"""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import row_draws
from palaestra.data import Batch, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import InvalidData
from palaestra.registry import Positive, register


@register("selection", "arrivals", reads=("duration",), writes=("row_weight",))
class Arrivals(StatefulPart):
    """Keep each row with probability shortest / duration.

    Args:
        shortest: duration of an act that always arrives.
    """

    def __init__(self, *, shortest: Positive = 1.0) -> None:
        self._shortest = shortest
        self._metrics: dict[str, float] = {}

    def __call__(self, table: StepTable, iteration: Iteration) -> Bool[Tensor, " rows"]:
        """bool (rows,). Raises: InvalidData, for a duration below the shortest."""
        took = table["duration"].double()
        if bool((took < self._shortest).any()):
            raise InvalidData(
                where="selection: arrivals", what=f"an act took {float(took.min()):g}, less than `shortest`."
            )
        kept = row_draws(table, seed=iteration.seed, purpose="arrivals") < self._shortest / took
        slow = took > self._shortest
        self._metrics = {"arrivals/slow_played": float(slow.double().mean())}
        if bool(kept.any()):
            self._metrics["arrivals/slow_arrived"] = float(slow[kept].double().mean())
        return kept

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Shares of acts that were longer than the shortest: of those played, of those that arrived."""
        return self._metrics
