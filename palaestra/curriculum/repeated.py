"""The same tasks again and again, as a training set of limited size.

Knows a training set. Knows nothing of how tasks were played.
"""

from __future__ import annotations

from typing import Any

from palaestra.curriculum.training_set import TrainingSet
from palaestra.data import Task
from palaestra.data.protocols import HasTasks
from palaestra.registry import PositiveInt, register


@register("sampler", "repeated")
class Repeated:
    """`size` tasks of split "train", each once before any comes again, every time in another order.

    What is stored by task, such as solved episodes, can be used only where tasks come again.

    Args:
        size: tasks in the set. Higher: a task comes again later. Usual: a few times `rollout.tasks`.
    """

    def __init__(self, *, size: PositiveInt = 64) -> None:
        self._set = TrainingSet(size)

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        return self._set.take(source, iteration, count, seed)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the set and its order follow from the seed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""
