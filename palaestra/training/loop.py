"""The loop: sampler → rollout → reward → selection → advantage → weights → loss → optimizer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from palaestra.data import RunSetup, Trajectory, derive
from palaestra.data.iteration import Iteration
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, MetricsLog
from palaestra.training.async_collector import AsyncCollector
from palaestra.training.batch import Batch
from palaestra.training.checkpoint import RunState, load_checkpoint, save_checkpoint
from palaestra.training.collector import Collector
from palaestra.training.evaluate import Panel
from palaestra.training.guards import Guard
from palaestra.training.measure import measure, spent
from palaestra.training.prepare import Parts, prepare
from palaestra.training.progress import Progress
from palaestra.training.settings import RunSettings
from palaestra.training.teamwork import Teamwork


@dataclass(kw_only=True)
class Trainer:
    """One run in motion. `training.start.start` makes it; `run` takes it to its end."""

    settings: RunSettings
    setup: RunSetup
    collector: Collector | AsyncCollector
    parts: Parts
    state: RunState
    folder: RunFolder
    panel: Panel
    progress: Progress
    step: int = 0
    counters: dict[str, float] = field(default_factory=lambda: {ENVIRONMENT_STEPS: 0, UPDATES: 0, "tokens": 0})

    def __post_init__(self) -> None:
        self.log, self.episodes = MetricsLog(self.folder), EpisodeLog(self.folder)
        self.guard = self.state.guard = Guard(self.settings.training)
        self.teamwork = Teamwork(self.setup.team, self.settings.training.max_empty)

    def run(self) -> None:
        """Train to the last iteration, or until the panel's score is as good as the recipe asks."""
        training, every = self.settings.training, self.settings.evaluation.every
        if self.step == 0 and not self.log.last_evaluation:
            self.evaluate()
            self.save()
        while self.step < training.iterations and not self.reached():
            self.iterate()
            if every and self.step % every == 0:
                self.evaluate()
            if training.checkpoint_every and self.step % training.checkpoint_every == 0:
                self.save()
        if self.log.last_evaluation["step"] < self.step:
            self.evaluate()
        if self.folder.checkpoint_steps()[-1] < self.step:
            self.save()

    def iterate(self) -> dict[str, float]:
        """One iteration: collect, credit, update, log."""
        started = time.perf_counter()
        batch = self.collector.collect(self.step)
        collected = time.perf_counter()
        batch.kept = self.guard.finished(batch.kept)
        self.credit(batch)
        metrics = measure(batch, self.setup.policies, self.setup.team) | batch.metrics
        metrics |= self.collector.learn(batch.played, self.step)
        updated = self.update(batch)
        if self.settings.due(self.step, self.state.updaters) and self.parts.ready:
            self.guard.learned(batch, self.state.updaters.values())
        for line in self.teamwork.check(metrics):
            self.progress.note(line)
        self.step += 1
        self.count(batch.played)
        seconds = {"time/rollout": collected - started, "time/update": time.perf_counter() - collected}
        self.log.append(self.step, metrics | updated | self.counters | seconds)
        self.progress.iteration(self.step, metrics | updated, seconds)
        return metrics | updated

    def credit(self, batch: Batch) -> Batch:
        """Every stage from table to weights."""
        training, rollout = self.settings.training, self.settings.rollout
        policies = {name: updater.policy for name, updater in self.state.updaters.items()}
        seed = derive(self.settings.seed, "parts", self.step)
        iteration = Iteration(policies, self.step, seed, rollout.temperature, training.token_budget)
        iteration.temperatures = self.setup.temperatures
        strict, references = self.settings.strict, self.state.references
        return prepare(
            batch, self.parts, iteration, references, several_updates=self.settings.several_updates, strict=strict
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """Every trainable policy improves; with several, their metrics carry the policy's name."""
        metrics: dict[str, float] = {}
        due = self.settings.due(self.step, self.state.updaters)
        for name, updater in self.state.updaters.items():
            if name not in due:
                updater.made = 0
                continue
            found = updater.update(batch, seed=derive(self.settings.seed, "update", self.step))
            if found:
                updater.policy.weights_changed(updater.policy.version + 1)
            if len(self.state.updaters) > 1:
                found = {f"policy/{name}/{key.removeprefix('policy/')}": value for key, value in found.items()}
            metrics |= found
        self.collector.refresh()
        return metrics

    def count(self, played: Sequence[Trajectory]) -> None:
        """Budget spent: environment steps and generated tokens, failed episodes included."""
        steps, tokens = spent(played)
        self.counters[ENVIRONMENT_STEPS] += steps
        self.counters["tokens"] += tokens
        self.counters[UPDATES] += max((updater.made for updater in self.state.updaters.values()), default=0)

    def evaluate(self) -> None:
        """Play the panel, write it down."""
        evaluation, played = self.panel.play()
        self.log.append_evaluation(self.step, evaluation.metrics() | self.counters)
        self.episodes.append(self.step, f"eval/{evaluation.name}", played[: self.settings.training.save_episodes])
        self.progress.evaluation(self.step, evaluation)

    def reached(self) -> bool:
        """Whether the last evaluation is as good as the recipe asks."""
        goal, written = self.settings.training.stop_at, self.log.last_evaluation
        return goal is not None and bool(written) and self.panel.score(written) >= goal

    def save(self) -> None:
        """Write a checkpoint."""
        self.log.sync()
        keep = self.settings.training.keep_checkpoints
        save_checkpoint(self.folder, self.step, self.state, counters=self.counters, keep=keep)

    def resume(self, place: Path) -> None:
        """Go back to a checkpoint; the logs forget what came after it."""
        self.step, self.counters = load_checkpoint(place, self.state)
        self.log.truncate(self.step)
        self.episodes.truncate(self.step)
        for line in self.log.metrics.read():
            self.teamwork.check(line)
