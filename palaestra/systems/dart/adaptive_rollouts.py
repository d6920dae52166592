"""A sampler that plays fewer and shorter episodes of tasks that are already solved; what it saves is not spent."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Annotated, Any

import pydantic

from palaestra.data import Play, StopReason, Task, Trajectory
from palaestra.data.abilities import HasTasks
from palaestra.parts.samplers import TrainingSet
from palaestra.registry import Fraction, PositiveInt, register

Slack = Annotated[int, pydantic.Field(ge=0)]
Most = Annotated[int, pydantic.Field(ge=2)]


@register("sampler", "adaptive_rollouts", source="arXiv 2509.23866; the rule for the number is ours")
class AdaptiveRollouts:
    """Set the number of trajectories of a task by its success rate, and its turn limit by its longest success.

        n     = max(least, round(most · (1 − max(0, (rate − threshold) / (1 − threshold)))))
        turns = length of the longest success of the task so far + slack

    The rate is that of the task's last `window` episodes. A task that was never played has `most` trajectories; a task
    that was never solved has no turn limit of its own. With threshold 1 and without slack this is the sampler
    `repeated`, or `uniform` without a size.

    Args:
        size: tasks in the training set; None: new tasks in each iteration, without a history.
        most: trajectories of a task that is not yet solved often. Usual: 8.
        least: ≥ 2, trajectories of a task that is always solved. Usual: 2.
        threshold: in [0, 1], success rate above which a task has fewer trajectories. Higher: fewer tasks are shortened.
            Usual: 0.6.
        slack: ≥ 0, turns beyond the longest success. Lower: cheaper, but longer solutions are never found. Usual: 2–5;
            None: no limit.
        window: number of episodes of a task that its rate is the mean of. Usual: 8–32.
        success: least outcome of a success. Usual: 1.
    """

    def __init__(
        self,
        *,
        size: PositiveInt | None = 64,
        most: Most = 8,
        least: Most = 2,
        threshold: Fraction = 0.6,
        slack: Slack | None = 3,
        window: PositiveInt = 16,
        success: float = 1.0,
    ) -> None:
        self._set, self._size = TrainingSet(size), size
        self._most, self._least, self._threshold = most, min(least, most), threshold
        self._slack, self._success = slack, success
        self._results: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=window))
        self._longest: dict[str, int] = {}

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Play]:
        tasks = self._set.take(source, iteration, count, seed)
        return [Play(task=task, samples=self._samples(task), turns=self._turns(task)) for task in tasks]

    def _samples(self, task: Task) -> int:
        results = self._results.get(task.content_hash)
        return self.number(sum(results) / len(results)) if results else self._most

    def number(self, rate: float) -> int:
        """The number of trajectories of a task with this success rate."""
        if self._threshold == 1:
            return self._most
        above = max(0.0, (rate - self._threshold) / (1 - self._threshold))
        return max(self._least, round(self._most * (1 - above)))

    def _turns(self, task: Task) -> int | None:
        longest = self._longest.get(task.content_hash)
        return None if longest is None or self._slack is None else longest + self._slack

    def learn(self, played: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Record the results of the tasks.

        Metrics: sampler/samples, trajectories per task; sampler/solved, the share of the training set (without a size:
            of the tasks played) that was ever solved.
        """
        over = [one for one in played if one.stop not in (StopReason.ERROR, StopReason.SUSPENDED) and one.steps]
        for trajectory in over:
            name, won = trajectory.task.content_hash, (trajectory.outcome or 0.0) >= self._success
            self._results[name].append(won)
            if won:
                self._longest[name] = max(self._longest.get(name, 0), len(trajectory.steps))
        groups = len({one.group for one in played}) or 1
        return {
            "sampler/samples": len(played) / groups,
            "sampler/solved": len(self._longest) / max(self._size or len(self._results), 1),
        }

    def state_dict(self) -> dict[str, Any]:
        """Results and longest successes by task."""
        return {
            "results": {name: list(results) for name, results in self._results.items()},
            "longest": dict(self._longest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore results and longest successes."""
        self._results.clear()
        for name, results in state["results"].items():
            self._results[name].extend(results)
        self._longest = dict(state["longest"])
