"""Evaluating a run's policies on held-out tasks; nothing is changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data import Play, RunSetup, Task, Trajectory, derive
from palaestra.data.protocols import Experience
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.evaluation.panels import Evaluation, summarize
from palaestra.training.settings import RunSettings


class Panel:
    """Held-out tasks and the runner that plays them; `close` it at the end, since the runner may be its own."""

    def __init__(self, settings: RunSettings, setup: RunSetup, experience: Experience | None = None) -> None:
        """
        Args:
            experience: its `instruction` is what the panel is played under.

        Raises: InvalidData, if the panel is empty or its committed hash does not fit.
        """
        self._settings, self._experience = settings.evaluation, experience
        self._seed = settings.seed
        self.name = settings.environment.name
        self.metric = self._settings.metric
        source, self._runner = setup.source, setup.runner
        self._own: Any = None  # a runner beside the run's
        if self._settings.environment is not None:
            self.name = self._settings.environment.name
            environment = self._settings.environment
            make = functools.partial(environment.part.target, **environment.options)
            source = make()
            setup = dataclasses.replace(
                setup,
                environment_name=self.name,
                environment_options=environment.options,
                make_environment=make,
                source=source,
            )
        self.tasks: Sequence[Task] = evaluation_tasks(source, self._settings.tasks, name=self._settings.panel)
        if self._settings.environment is not None:
            self._runner = self._own = settings.rollout.runner.part.target(setup, settings.rollout)

    def close(self) -> None:
        """End the runner's workers, if it is the panel's own; that of the run is closed with the run."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def play(self) -> tuple[Evaluation, list[Trajectory]]:
        """One episode of each task."""
        said = None if self._experience is None else self._experience.instruction
        plays = [
            Play(
                task=task,
                group=f"eval-{i:05d}",
                sample=0,
                seed=derive(self._seed, "eval", task.content_hash),
                instruction=said,
            )
            for i, task in enumerate(self.tasks)
        ]
        played = self._runner.collect(plays, temperature=self._settings.temperature)
        return summarize(played, name=self.name), played

    def score(self, written: Mapping[str, Any]) -> float:
        """The number of a logged evaluation that `training.stop_at` is compared with."""
        return float(written.get(f"eval/{self.name}/{self._settings.metric}") or 0.0)
