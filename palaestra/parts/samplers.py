"""Samplers choose the tasks that an iteration plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.boundary.tasks import tasks_of
from palaestra.data import Task, Trajectory, derive
from palaestra.data.abilities import HasTasks
from palaestra.registry import PositiveInt, register


@register("sampler", "uniform")
def uniform(source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
    """Draw `count` tasks of the split "train". Each iteration draws new ones; the same seed repeats them.

    Args:
        source: the environment.
        iteration: number of the iteration.
        count: number of tasks.
        seed: of the run.
    """
    return tasks_of(source, "train", count, derive(seed, "tasks", iteration))


@register("sampler", "repeated")
class Repeated:
    """Repeat a fixed set of tasks of the split "train". Each pass plays every task once, in a new order.

    Parts that store results by task, such as solved episodes, need tasks that come again.

    Args:
        size: number of tasks in the set. Higher: a task comes again later. Usual: a few times `rollout.tasks`.
        success: smallest outcome that counts as a success. It serves only the metric `sampler/solved`, the share of the
            set that was solved at least once.
    """

    def __init__(self, *, size: PositiveInt = 64, success: float = 1.0) -> None:
        self._set, self._size, self._success = TrainingSet(size), size, success
        self._solved: set[str] = set()

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        return self._set.take(source, iteration, count, seed)

    def learn(self, played: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Record the solved tasks, for the metric. The choice of tasks does not depend on it."""
        self._solved |= {one.task.content_hash for one in played if (one.outcome or 0.0) >= self._success}
        return {"sampler/solved": len(self._solved) / self._size}

    def state_dict(self) -> dict[str, Any]:
        """The solved tasks. The set and its order follow from the seed."""
        return {"solved": sorted(self._solved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the solved tasks."""
        self._solved = set(state["solved"])


class TrainingSet:
    """A fixed set of training tasks, which the first call draws. Further groups of an iteration use the same set.

    Args:
        size: number of tasks; None: every iteration draws new tasks, as the sampler `uniform` does.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._tasks: list[Task] = []

    def take(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        """The tasks of an iteration. Every task of the set is played once before any comes again."""
        if self._size is None:
            return tasks_of(source, "train", count, derive(seed, "tasks", iteration))
        if not self._tasks:
            self._tasks = tasks_of(source, "train", self._size, derive(seed, "training set"))
        size = len(self._tasks)
        places = range(iteration * count, (iteration + 1) * count)
        orders = {
            epoch: np.random.default_rng(derive(seed, "order", epoch)).permutation(size)
            for epoch in {place // size for place in places}
        }
        return [self._tasks[orders[place // size][place % size]] for place in places]
