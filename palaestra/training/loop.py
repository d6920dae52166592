"""The loop: experience → table → rewards → selection → columns → advantages → weights → learners → publish.

`prepare` runs the stages of one iteration, `Trainer.iterate` the whole iteration, and `Trainer.run` all iterations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from palaestra.boundary.process import learning, protected
from palaestra.data import Batch, Iteration, RunSetup, StepTable, Trajectory, derive, rows_of
from palaestra.data.protocols import Experience, StatefulPart
from palaestra.errors import NoSignal
from palaestra.process.interruption import Interruption
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, MetricsLog
from palaestra.training.checkpoint import RunState, load_checkpoint
from palaestra.training.monitor.guards import Guard, Movement, Teamwork
from palaestra.training.monitor.metrics import measure, spent
from palaestra.training.monitor.panel import Panel
from palaestra.training.parallel import refuse_interrupted
from palaestra.training.passes import fill_columns, plan_passes, reader
from palaestra.training.progress import Progress
from palaestra.training.saving import Keeper
from palaestra.training.settings import RunSettings
from palaestra.training.stages import Stages, apply_rewards, apply_selection, assign_credit, learned_from, weigh


def prepare(
    batch: Batch, stages: Stages, iteration: Iteration, *, several_updates: bool, strict: bool = False
) -> StepTable:
    """Run every stage on the trajectories that the batch keeps. Returns the table, which the batch then holds.

    Args:
        iteration: `prepare` sets its rows.
        several_updates: whether the iteration makes several updates, or learns from episodes of older weights.
        strict: refuse rows that occur twice without a column `row_weight`.
    """
    trajectories = batch.kept
    for part in stages.stateful.values():
        trajectories = part.choose(list(trajectories), iteration)
    iteration.rows = rows_of(trajectories)
    table = StepTable.from_trajectories(trajectories)
    if strict:
        table.refuse_duplicates()
    table = apply_rewards(stages.reward, stages.with_declared(table), iteration)
    table = apply_selection(stages.selection, table, iteration)
    trained = learned_from(table, stages.frozen)
    plans = {
        name: plan_passes(
            map(reader, stages.all),
            map(reader, stages.updates.get(name, ())),
            gives=policy.outputs,
            several_updates=several_updates,
        )
        for name, policy in iteration.policies.items()
    }
    table = fill_columns(table, iteration, plans, iteration.references, trained=trained)
    if stages.reads_advantage:
        table = assign_credit([part.at(iteration) for part in stages.advantage], table)
    batch.table = weigh(table, stages.weights, iteration, trained)
    batch.metrics |= iteration.metrics
    return batch.table


@dataclass(kw_only=True)
class Trainer:
    """A run of training. `training.start.train` makes it and calls `run`.

    Attributes:
        learners: by their names in checkpoints, in the order of their updates: the stages' parts with state, then the
            recipe's learners.
        interruption: of the signals that end the run.
        step: number of finished iterations.
        counters: environment steps, tokens and updates so far.
    """

    settings: RunSettings
    setup: RunSetup
    experience: Experience
    stages: Stages
    learners: Mapping[str, StatefulPart]
    state: RunState
    folder: RunFolder
    panel: Panel
    progress: Progress
    interruption: Interruption = field(default_factory=Interruption)
    step: int = 0
    counters: dict[str, float] = field(default_factory=lambda: {ENVIRONMENT_STEPS: 0, UPDATES: 0, "tokens": 0})

    def __post_init__(self) -> None:
        self.log, self.episodes = MetricsLog(self.folder), EpisodeLog(self.folder)
        self.guard = self.state.guard = Guard(self.settings.training)
        self.state.panel = self.panel
        self.shaped = any(part.name != "environment" for part in self.settings.reward)
        self.teamwork, self.movement = Teamwork(self.setup.team, self.settings.training.max_empty), Movement()
        self.keeper = Keeper(self.folder, self.state, self.log, self.settings.training, self.setup.ranks)

    def run(self) -> None:
        """Train to the last iteration, or until `training.stop_at`. Raises: Stopped, if a signal ends the run."""
        with self.interruption.deferred():
            self.progress.begin(self.step)
            while True:
                if self.keeper.saved < 0:
                    self.keeper.save(self.step, self.counters)
                if self.panel.due(self.step, self.log.last_evaluation):
                    self.evaluate()
                ended = self.panel.ends(self.step, self.log.last_evaluation)
                if self.keeper.due(self.step, ended=ended):
                    self.keeper.save(self.step, self.counters)
                if ended:
                    return
                self.keeper.report(self.step)
                refuse_interrupted(self.interruption, self.setup.ranks)
                self.iterate()
                self.folder.settle()

    def iterate(self) -> dict[str, float]:
        """One iteration: collect, run the stages, update the learners, publish the weights, log. Returns metrics."""
        began, iteration = time.perf_counter(), self.iteration()
        with self.interruption.allowed(not self.state.others and self.setup.ranks.world == 1), protected("a rollout"):
            batch = self.experience.collect(self.step)  # where it may not stop, state would be lost
        collected = time.perf_counter()
        batch.kept = self.guard.finished(batch.kept)
        learners = self.learners if batch.kept else {}  # with `max_failed: 1` all episodes may have failed
        if batch.kept:
            several = self.settings.several_updates
            prepare(batch, self.stages, iteration, several_updates=several, strict=self.settings.strict)
        metrics = measure(batch, self.setup.policies, self.setup.team, shaped=self.shaped) | batch.metrics
        updated: dict[str, float] = {}
        if self.setup.engine is not None:
            metrics |= self.setup.engine.counters()
            self.setup.engine.sleep()  # what it caches is worth nothing after the update
        for name, learner in learners.items():
            with protected(f"{name} or a part that it runs"), learning():
                updated |= learner.update(batch, iteration)
        metrics |= self.experience.publish(batch, self.step)
        if self.setup.engine is not None:
            self.setup.engine.wake()
        self.counters[UPDATES] += (made := sum(learner.made for learner in learners.values()))
        for line in (*self.teamwork.check(metrics), *(self.movement.check(updated) if made else ())):
            self.progress.note(line)
        self.step += 1
        self.count(batch.played)
        self.panel.note(self.setup.source, [trajectory.task for trajectory in (*batch.played, *batch.kept)])
        seconds = {"time/rollout": collected - began, "time/update": time.perf_counter() - collected}
        metrics["speed/tokens"] = spent(batch.played)[1] / sum(seconds.values())
        self.log.append(self.step, metrics | updated | self.counters | seconds)
        self.progress.iteration(self.step, metrics | updated, seconds)
        if all(learner.ready for learner in learners.values()):
            signal = any(learner.has_signal(batch, iteration) for learner in learners.values())
            try:
                self.guard.learned(metrics, signal, number=self.step)
            except NoSignal:  # they show what the policy did last
                self.episodes.append(self.step, "train", batch.played[: self.settings.training.save_episodes])
                raise
        return metrics | updated

    def iteration(self) -> Iteration:
        """The `Iteration` that starts now, for the parts."""
        return Iteration(
            policies=self.setup.trained,
            number=self.step,
            seed=derive(self.settings.seed, "parts", self.step),
            temperature=self.settings.rollout.temperature,
            token_budget=self.settings.training.tokens_at_once,
            temperatures=self.setup.temperatures,
            references=self.state.references,
            ranks=self.setup.ranks,
        )

    def count(self, played: Sequence[Trajectory]) -> None:
        """Add this iteration's environment steps and generated tokens, failed episodes included."""
        steps, tokens = spent(played)
        self.counters[ENVIRONMENT_STEPS] += steps
        self.counters["tokens"] += tokens

    def evaluate(self) -> None:
        """Play the panel, and log its result."""
        with self.interruption.allowed(self.setup.ranks.world == 1):
            evaluation, played = self.panel.play()
        self.episodes.append(self.step, f"eval/{evaluation.name}", played[: self.settings.training.save_episodes])
        self.log.append_evaluation(self.step, evaluation.metrics() | self.counters)
        self.progress.evaluation(self.step, evaluation)

    def resume(self, place: Path) -> None:
        """Continue from a checkpoint. Later lines leave the logs; damage of those that only inform is said."""
        self.step, self.counters = load_checkpoint(place, self.state)
        self.keeper.saved = self.step
        faults = [self.log.truncate(self.step), *self.episodes.salvage(self.step, place)]
        for fault in filter(None, faults if self.setup.ranks.main else ()):  # other ranks have no such logs
            self.progress.warn(f"{fault}; the run goes on, which does not need it")
        if self.log.last_evaluation.get("step", -1) < self.step:  # it was cut, and its episodes are played again
            self.episodes.drop(self.step, f"eval/{self.panel.name}")
        self.teamwork.recall(self.log.metrics.read())
