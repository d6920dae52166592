"""The same tasks again and again, as a training set of limited size.

Knows a training set and which of its tasks were solved. Knows nothing of how they were played.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palaestra.curriculum.training_set import TrainingSet
from palaestra.data import Task, Trajectory
from palaestra.data.protocols import HasTasks
from palaestra.registry import PositiveInt, register


@register("sampler", "repeated")
class Repeated:
    """`size` tasks of split "train", each once before any comes again, every time in another order.

    What is stored by task, such as solved episodes, can be used only where tasks come again.

    Args:
        size: tasks in the set. Higher: a task comes again later. Usual: a few times `rollout.tasks`.
        success: least outcome of a success, for the metric `sampler/solved`: the share of the set that was ever solved.
    """

    def __init__(self, *, size: PositiveInt = 64, success: float = 1.0) -> None:
        self._set, self._size, self._success = TrainingSet(size), size, success
        self._solved: set[str] = set()

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        return self._set.take(source, iteration, count, seed)

    def learn(self, played: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Note what was solved; the tasks that come next do not depend on it."""
        self._solved |= {one.task.content_hash for one in played if (one.outcome or 0.0) >= self._success}
        return {"sampler/solved": len(self._solved) / self._size}

    def state_dict(self) -> dict[str, Any]:
        """What was solved; the set and its order follow from the seed."""
        return {"solved": sorted(self._solved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was saved."""
        self._solved = set(state["solved"])
