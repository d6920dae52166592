"""In a fixed training set some tasks are always solved and some are never solved. All outcomes of such a group are
equal, so a method without a critic learns nothing from it. This sampler keeps a moving success rate for each task.
Tasks whose rate lies inside a window, and tasks that were never played, have weight 1; the others have a small weight.
Tasks are sampled without replacement. DAPO (arXiv 2503.14476) discards such groups after they were played; here they
are played less often. This form is ours and no paper's. This file is the sampler; the estimator `grpo` is in
`palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.data import StopReason, Task, Trajectory, derive
from palaestra.data.abilities import HasTasks
from palaestra.errors import RecipeError
from palaestra.parts.samplers import TrainingSet
from palaestra.registry import Fraction, PositiveInt, register

WHERE = "sampler: success_window"


@register("sampler", "success_window", source="ours, after what groups with equal outcomes teach")
class SuccessWindow:
    """Sample tasks of a fixed set without replacement, each with a weight that depends on its success rate.

        rate ← (1 − speed) · rate + speed · mean outcome of its group        first group: the mean itself
        weight = 1 if low ≤ rate ≤ high or the task was never played, else `outside`

    A method without a critic learns nothing from a group whose trajectories all succeed or all fail, so tasks with
    other rates are preferred.

    Args:
        pool: > 0, tasks of the set. Higher: less memorizing, and rates that are older. Usual: 64–1000.
        low, high: in [0, 1], the window, both edges included. Usual: 0.1 and 0.9.
        outside: in [0, 1], weight of other tasks. Higher: solved tasks are checked more often; with 1 it is the sampler
            `repeated`. 0: a task outside the window is played only when the others do not suffice. Usual: 0.1.
        speed: in [0, 1]. Higher: only the latest group counts. Usual: 0.5.

    Metrics: curriculum/inside, curriculum/solved (above the window) and curriculum/hopeless (below), shares of the set;
        curriculum/seen, the share that was played.
    Raises: RecipeError, if low > high, or if an iteration needs more tasks than the set has.
    """

    def __init__(
        self,
        *,
        pool: PositiveInt = 128,
        low: Fraction = 0.1,
        high: Fraction = 0.9,
        outside: Fraction = 0.1,
        speed: Fraction = 0.5,
    ) -> None:
        if low > high:
            raise RecipeError(where=WHERE, what=f"the window from {low} to {high} is empty.", remedy="Set low ≤ high.")
        self._pool, self._low, self._high, self._outside, self._speed = pool, low, high, outside, speed
        self._rate: dict[str, float] = {}  # by content hash
        self._set = TrainingSet(pool)
        self._tasks: list[Task] = []

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        if count > self._pool:
            raise RecipeError(
                where=WHERE,
                what=f"an iteration plays {count} tasks, but the set has {self._pool}.",
                remedy=f"Set `pool` to {count} or more, or `rollout.tasks` lower.",
            )
        if self._outside == 1.0:
            return self._set.take(source, iteration, count, seed)
        if not self._tasks:
            self._tasks = self._set.take(source, 0, self._pool, seed)
        draw = random.Random(derive(seed, "window", iteration))
        # The largest of uniform numbers to the power 1/weight are a weighted sample without replacement.
        keys = [_key(draw.random(), self.weight(task)) for task in self._tasks]
        best = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:count]
        return [self._tasks[place] for place in best]

    def weight(self, task: Task) -> float:
        """The weight of a task."""
        rate = self._rate.get(task.content_hash)
        return 1.0 if rate is None or self._low <= rate <= self._high else self._outside

    def learn(self, played: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Update the rates of the tasks that were played; an episode without outcome counts as failed."""
        results: dict[str, list[float]] = defaultdict(list)
        for trajectory in played:
            if trajectory.stop not in (StopReason.ERROR, StopReason.SUSPENDED):
                results[trajectory.task.content_hash].append(trajectory.outcome or 0.0)
        for name, outcomes in results.items():
            now = float(np.mean(outcomes))
            before = self._rate.get(name, now)
            self._rate[name] = before + self._speed * (now - before)
        rates = np.array(list(self._rate.values()))
        return {
            "curriculum/seen": len(rates) / self._pool,
            "curriculum/inside": float(((rates >= self._low) & (rates <= self._high)).sum() / self._pool),
            "curriculum/solved": float((rates > self._high).sum() / self._pool),
            "curriculum/hopeless": float((rates < self._low).sum() / self._pool),
        }

    def state_dict(self) -> dict[str, Any]:
        """The success rates by content hash; the set itself follows from the seed."""
        return {"rate": dict(self._rate)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the success rates."""
        self._rate = dict(state["rate"])


def _key(drawn: float, weight: float) -> tuple[bool, float]:
    return weight > 0, math.log(max(drawn, 1e-300)) / (weight or 1.0)
