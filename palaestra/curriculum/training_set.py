"""A training set: a fixed number of tasks, gone through again and again, each time in another order.

Knows an environment's `tasks` and counts of iterations. Knows nothing of how tasks are played.
"""

from __future__ import annotations

import numpy as np

from palaestra.data import Task, derive
from palaestra.data.protocols import HasTasks


class TrainingSet:
    """The first call decides the set, so that further groups of an iteration come from the same one.

    Args:
        size: tasks; None: every iteration has fresh ones, as with the sampler `uniform`.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._tasks: list[Task] = []

    def take(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        """The tasks of an iteration: each of the set once before any comes again."""
        if self._size is None:
            return source.tasks("train", count, derive(seed, "tasks", iteration))
        if not self._tasks:
            self._tasks = source.tasks("train", self._size, derive(seed, "training set"))
        size = len(self._tasks)
        places = range(iteration * count, (iteration + 1) * count)
        orders = {
            epoch: np.random.default_rng(derive(seed, "order", epoch)).permutation(size)
            for epoch in {place // size for place in places}
        }
        return [self._tasks[orders[place // size][place % size]] for place in places]
