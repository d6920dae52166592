"""The held-out tasks of a run's evaluations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palaestra.data import Play, RunSetup, Task, Trajectory, derive
from palaestra.data.abilities import content_of
from palaestra.data.protocols import Experience
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.envs.worlds.dataset.records import RECORDS
from palaestra.evaluation.panels import Evaluation, form, summarize, tasks_line
from palaestra.registry.user_objects import shown
from palaestra.store.folder import RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import MetricsLog
from palaestra.training.parallel import SharedRunner
from palaestra.training.settings import RunSettings, TrainingSettings


class Panel:
    """The tasks of evaluations, which of them training has met, and the runner that plays them.

    Call `close` at the end, since the panel may own its runner.
    """

    def __init__(self, settings: RunSettings, setup: RunSetup, experience: Experience | None = None) -> None:
        """
        Args:
            experience: its `instruction` is given to every policy of the panel.

        Raises: InvalidData, if the panel is empty or its committed hash does not fit.
        """
        self._settings, self._experience = settings.evaluation, experience
        self._training: TrainingSettings = settings.training
        self._seed = settings.seed
        self.name = shown(settings.environment.name)
        self.metric = self._settings.metric
        source, self._runner = setup.source, setup.runner
        self._own: Any = None  # a runner beside the run's
        if self._settings.environment is not None:
            self.name = shown(self._settings.environment.name)
            environment = self._settings.environment
            make = functools.partial(environment.part.target, **environment.options)
            source = make()
            setup = dataclasses.replace(
                setup,
                environment_name=self._settings.environment.name,
                environment_options=environment.options,
                make_environment=make,
                source=source,
            )
        self.tasks: Sequence[Task] = evaluation_tasks(source, self._settings.tasks, name=self._settings.panel)
        self._contents = [content_of(source, task) for task in self.tasks]
        self._trained: set[str] | None = None if None in self._contents else set()
        if self._settings.environment is not None:
            self._runner = self._own = settings.rollout.runner.part.target(setup, settings.rollout)
            if setup.ranks.world > 1:
                self._runner = SharedRunner(self._own, setup.ranks)

    def close(self) -> None:
        """Close the panel's own runner, if it has one. The run closes its own runner."""
        if self._own is not None:
            self._own.close()
            self._own = None

    # ---- what was trained on ------------------------------------------------------------------------------
    def note(self, source: Any, tasks: Iterable[Task]) -> None:
        """Training has played these tasks of `source`, or learned from episodes of them."""
        if self._trained is None:
            return
        for task in {task.content_hash: task for task in tasks}.values():
            # A task of a file is none of the environment's.
            content = task.content if task.env == RECORDS else content_of(source, task)
            if content is None:
                self._trained = None
                return
            if content in self._contents:
                self._trained.add(content)

    @property
    def shared(self) -> int | None:
        """How many of the panel's tasks were trained on too; None where contents are not known."""
        return None if self._trained is None else sum(content in self._trained for content in self._contents)

    @property
    def described(self) -> str:
        """`256 held-out tasks`, if none of them was trained on."""
        different = None if None in self._contents else len({*self._contents})
        return tasks_line(len(self.tasks), self.shared, different=different)

    def state_dict(self) -> dict[str, Any]:
        """The contents of the panel, and those that were trained on; null where they are not known."""
        if self._trained is None:
            return {"contents": None}
        return {"contents": sorted({*map(str, self._contents)}), "trained": sorted(self._trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What a run noted, also of a panel with other tasks: of tasks that it did not compare, nothing is known."""
        compared = state.get("contents")
        known = compared is not None and self._trained is not None and {*self._contents} <= {*compared}
        self._trained = {*state["trained"]} if known else None

    # ---- playing ------------------------------------------------------------------------------------------
    def play(self, *, samples: int = 1, seed: int | None = None) -> tuple[Evaluation, list[Trajectory]]:
        """Play the tasks.

        Args:
            samples: episodes of each task. The first is the same for every number of samples.
            seed: of what is sampled; None: the seed of the run.

        Returns: the result, and the episodes in the order of the tasks.
        """
        said = None if self._experience is None else self._experience.instruction
        first = self._seed if seed is None else seed
        plays = [
            Play(
                task=task,
                group=f"eval-{i:05d}",
                sample=sample,
                seed=derive(first, "eval", task.content_hash, *([sample] if sample else [])),
                instruction=said,
            )
            for i, task in enumerate(self.tasks)
            for sample in range(samples)
        ]
        played = self._runner.collect(plays, temperature=self._settings.temperature)
        return summarize(played, name=self.name, samples=samples), played

    def due(self, step: int, last: Mapping[str, Any]) -> bool:
        """Whether the panel must be played after iteration `step`.

        It is played at the start, every `evaluation.every` iterations, and at the end.

        Args:
            last: the newest logged evaluation.
        """
        every = self._settings.every
        wanted = step == 0 or step >= self._training.iterations or (every is not None and step % every == 0)
        return wanted and int(last.get(STEP, -1)) < step

    def ends(self, step: int, last: Mapping[str, Any]) -> bool:
        """Whether the run is over: after its last iteration, or once a score reaches `training.stop_at`.

        Args:
            last: the newest logged evaluation.
        """
        training = self._training
        goal, score = training.stop_at, float(last.get(f"eval/{self.name}/{self.metric}") or 0.0)
        return step >= training.iterations or (goal is not None and bool(last) and score >= goal)


def closing_line(folder: RunFolder, panel: Panel) -> str:
    """The intervals of the first and the last evaluation, and below them `success 0.438 -> 0.945 on 256 …`.

    If the environment gives no success, the numbers are returns.
    """
    written = MetricsLog(folder).evaluations.read()
    ends, metric = (written[0], written[-1]), panel.metric
    if all(record.get(f"eval/{panel.name}/{metric}") is None for record in ends):
        metric = "return"
    lines, values = [], []
    for record in ends:
        value, low, high = (record.get(f"eval/{panel.name}/{metric}{ending}") for ending in ("", "_low", "_high"))
        values.append("none" if value is None else format(value, form(value)))
        if value is not None and low is not None and high is not None:
            shown = form(value)
            interval = f"{value:{shown}}, 95 % interval {low:{shown}} to {high:{shown}}"
            lines.append(f"iteration {record['step']}: {metric} {interval}")
    return "\n".join([*lines, f"{metric} {values[0]} -> {values[1]} on {panel.described}"])
