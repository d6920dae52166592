"""The neutral sampler: fresh training tasks, all alike. Knows an environment's `tasks`; keeps no state."""

from __future__ import annotations

from palaestra.data import Task, derive
from palaestra.data.protocols import HasTasks
from palaestra.registry import register


@register("sampler", "uniform")
def uniform(source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
    """`count` tasks of split "train"; another iteration gives others, the same one the same.

    Args:
        source: the environment; iteration, count, seed: of the run.
    """
    return source.tasks("train", count, derive(seed, "tasks", iteration))
