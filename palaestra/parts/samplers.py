"""Samplers: which tasks an iteration plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.data import Task, Trajectory, derive
from palaestra.data.abilities import HasTasks
from palaestra.registry import PositiveInt, register


@register("sampler", "uniform")
def uniform(source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
    """`count` tasks of split "train"; another iteration gives others, the same one the same.

    Args:
        source: the environment; iteration, count, seed: of the run.
    """
    return source.tasks("train", count, derive(seed, "tasks", iteration))


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
