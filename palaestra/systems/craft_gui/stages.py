"""A sampler that plays short tasks first, then longer ones, with a share of the earlier tasks."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.boundary.tasks import tasks_of
from palaestra.data import StopReason, Task, Trajectory, derive
from palaestra.data.abilities import HasTasks, difficulty_of
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Fraction, NonNegative, PositiveInt, register

WHERE = "sampler: stages"
SEARCHED = 4096  # number of tasks after which a bucket counts as empty
AtLeastTwo = Annotated[int, pydantic.Field(ge=2)]


@register("sampler", "stages", uses=("difficulty",), source="arXiv 2508.11360")
class Stages:
    """Play tasks of one bucket of difficulty at a time, and a share of tasks of earlier stages.

        bucket b holds tasks with limit_{b−1} < difficulty ≤ limit_b        stage c plays bucket c,
        and each of its tasks is replaced by one of the earlier stages with probability `replay`

    Without limits there is one bucket, and the sampler is `uniform`, task for task.

    Args:
        limits: rising upper limits of difficulty of all buckets but the last, which has none. Usual: (3, 8) actions of
            the reference solution.
        replay: in [0, 1], share of tasks of earlier stages. Higher: less forgetting, slower progress. Usual: 0.1.
        switch: "steps": a stage lasts `every` iterations. "plateau": a stage lasts until its own success rate in
            training stops rising, so that the mean of its last `patience` iterations is at most `margin` above that of
            the `patience` before.
        every: > 0, iterations of a stage. Higher: longer stages. Usual: 20.
        patience: ≥ 2, iterations of each mean of "plateau". Higher: longer stages. Usual: 5.
        margin: ≥ 0, least rise of the success rate. Higher: stages end sooner. Usual: 0.02.
        order: "rising" from the easiest bucket to the hardest; "falling" the other way, as a control.

    Metrics: curriculum/stage, from 0; curriculum/success, of this stage's own tasks; curriculum/replayed, the share of
        tasks of other stages.
    Raises: RecipeError, if limits do not rise; InvalidData, if tasks have no difficulty, or if `SEARCHED` training
        tasks hold too few of a bucket.

    Differs from the authors' code: there is none; limits, replay and both ways to switch are ours.
    """

    def __init__(
        self,
        *,
        limits: tuple[float, ...] = (3.0, 8.0),
        replay: Fraction = 0.1,
        switch: Literal["steps", "plateau"] = "steps",
        every: PositiveInt = 20,
        patience: AtLeastTwo = 5,
        margin: NonNegative = 0.02,
        order: Literal["rising", "falling"] = "rising",
    ) -> None:
        if any(low >= high for low, high in zip(limits, limits[1:], strict=False)):
            raise RecipeError(where=WHERE, what=f"`limits` {list(limits)} do not rise.", remedy="Sort them, each once.")
        self._limits, self._replay = limits, replay
        self._switch, self._every, self._patience, self._margin = switch, every, patience, margin
        buckets = range(len(limits) + 1)
        self._order = tuple(buckets) if order == "rising" else tuple(reversed(buckets))
        self.stage = 0
        self._source: HasTasks | None = None  # tells difficulties
        self._history: list[float] = []  # success of this stage's own tasks, iteration by iteration

    def bucket(self, difficulty: float) -> int:
        """The bucket of a difficulty, from 0."""
        return bisect.bisect_left(self._limits, difficulty)

    def __call__(self, source: HasTasks, iteration: int, count: int, seed: int) -> list[Task]:
        self._source = source
        stage = self._stage_at(iteration)
        draw = random.Random(derive(seed, "stages", iteration))
        wanted = [self._order[stage]] * count
        if stage > 0:  # draws are made task by task, so that a larger count does not change the first tasks
            wanted = [
                self._order[draw.randrange(stage)] if draw.random() < self._replay else bucket for bucket in wanted
            ]
        return self._find(source, wanted, derive(seed, "tasks", iteration))

    def _stage_at(self, iteration: int) -> int:
        return min(iteration // self._every, len(self._order) - 1) if self._switch == "steps" else self.stage

    def _find(self, source: HasTasks, wanted: Sequence[int], seed: int) -> list[Task]:
        """The first tasks of the environment's list that belong to the wanted buckets, in the order of `wanted`."""
        if not self._limits:
            return tasks_of(source, "train", len(wanted), seed)
        places: dict[int, list[int]] = {b: [i for i, own in enumerate(wanted) if own == b] for b in set(wanted)}
        found: dict[int, Task] = {}
        given, size = 0, 4 * len(wanted)
        while len(found) < len(wanted):
            tasks = tasks_of(source, "train", size, seed)[given:]  # a longer list begins with the shorter one
            for task in tasks:
                waiting = places.get(self._bucket_of(task))
                if waiting:
                    found[waiting.pop(0)] = task
            given, size = size, 2 * size
            empty = next((bucket for bucket, waiting in places.items() if waiting), None)
            if empty is not None and given >= SEARCHED:
                raise InvalidData(
                    where=WHERE,
                    what=f"bucket {empty + 1}, {self._range(empty)}, is empty or nearly so: {given} training tasks "
                    f"contain fewer than the {wanted.count(empty)} wanted.",
                    remedy="Set `limits` within the environment's difficulties, or widen its options.",
                )
        return [found[place] for place in range(len(wanted))]

    def _bucket_of(self, task: Task) -> int:
        difficulty = difficulty_of(self._source, task)
        if difficulty is None:
            raise InvalidData(
                where=WHERE,
                what=f"a task of `{task.env}` has no difficulty.",
                remedy="Give the environment a method `difficulty(task) -> float`, or use the sampler `uniform`.",
            )
        return self.bucket(difficulty)

    def _range(self, bucket: int) -> str:
        edges = [float("-inf"), *self._limits, float("inf")]
        return f"difficulty above {edges[bucket]:g} and up to {edges[bucket + 1]:g}"

    # ---- progress -----------------------------------------------------------------------------------------
    def learn(self, played: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Record the success of this stage's own tasks; with "plateau" this may end the stage.

        An episode without an outcome counts as failed.
        """
        stage = self._stage_at(iteration)
        self.stage = stage
        whole = [t for t in played if t.stop not in (StopReason.ERROR, StopReason.SUSPENDED)]
        own = [t for t in whole if not self._limits or self._bucket_of(t.task) == self._order[stage]]
        metrics = {"curriculum/stage": float(stage)}
        if whole:
            metrics["curriculum/replayed"] = 1.0 - len(own) / len(whole)
        if own:
            success = float(np.mean([t.outcome or 0.0 for t in own]))
            self._history = [*self._history, success][-2 * self._patience :]
            metrics["curriculum/success"] = success
        if self._switch == "plateau" and stage < len(self._order) - 1 and self._flat():
            self.stage, self._history = stage + 1, []
        return metrics

    def _flat(self) -> bool:
        if len(self._history) < 2 * self._patience:
            return False
        before, now = np.mean(self._history[: self._patience]), np.mean(self._history[self._patience :])
        return bool(now - before <= self._margin)

    def state_dict(self) -> dict[str, Any]:
        """The stage and the success of its tasks."""
        return {"stage": self.stage, "history": list(self._history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the stage and the success of its tasks."""
        self.stage, self._history = int(state["stage"]), list(state["history"])
