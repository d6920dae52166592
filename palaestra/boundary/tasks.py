"""Asks an environment for tasks, and says whose fault it is if there are none."""

from __future__ import annotations

from collections import Counter
from typing import Any

from palaestra.boundary.cleaning import Counts, clean_value
from palaestra.data import Task
from palaestra.errors import ContractError, PalaestraError, described, ends_run


def tasks_of(environment: Any, split: str, n: int, seed: int) -> list[Task]:
    """What `environment.tasks(split, n, seed)` gives.

    Raises: ContractError, if it raises, or gives anything but tasks that can be stored; MissingExtra.
    """
    where = f"environment {type(environment).__name__}, tasks(split={split!r}, n={n}, seed={seed})"
    try:
        tasks = list(environment.tasks(split, n, seed))
    except PalaestraError:
        raise
    except BaseException as error:
        if ends_run(error):
            raise
        raise ContractError(
            where=where, what=described(error), remedy="Correct `tasks`: without tasks nothing can be played."
        ) from error
    counts: Counts = Counter()
    for task in tasks:
        if not isinstance(task, Task):
            raise ContractError(where=where, what=f"it gave a {type(task).__name__}, not a Task.")
        clean_value((task.env, task.key, task.params), counts)
        if counts:
            raise ContractError(
                where=where,
                what=f"the task with seed {task.seed} has a text or a value that no file can hold.",
                remedy="Leave out control characters, halves of characters, and values that JSON lacks.",
            )
    return tasks
