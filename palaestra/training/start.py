"""Starting and resuming runs: from settings to a Trainer, and its results to the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from palaestra.bound import BoundPart
from palaestra.data import RunSetup
from palaestra.evaluation.panels import form
from palaestra.evaluation.report import write_report
from palaestra.models.devices import run_device
from palaestra.rollout.journal import Journal
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.store.lock import writing
from palaestra.store.metrics import UPDATES, MetricsLog
from palaestra.training.async_collector import AsyncCollector, refuse_strategies
from palaestra.training.build import build_setup, make_optimizer
from palaestra.training.checkpoint import RunState
from palaestra.training.clones import Clones
from palaestra.training.collector import Collector
from palaestra.training.evaluate import Panel
from palaestra.training.loop import Trainer
from palaestra.training.prepare import Parts, started
from palaestra.training.progress import Progress
from palaestra.training.settings import PolicySettings, RunSettings
from palaestra.training.updates import Updater
from palaestra.training.warm_start import warm_start


def train(
    settings: RunSettings,
    *,
    recipe: Mapping[str, Any],
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> str:
    """Run a recipe from its start, or go on from its newest checkpoint.

    Args:
        recipe: the resolved recipe with origins, kept in the run folder.

    Returns: the closing line: `success 0.438 -> 0.945 on 256 held-out tasks`.
    Raises: RunFolderError, RecipeError, CheckpointError, NoSignal.
    """
    run_device(settings.device)  # before a folder is made
    if settings.training.max_staleness:
        refuse_strategies(settings)
    path = settings.run or f"runs/{settings.name}"
    with writing(path, make=not resume):
        folder = RunFolder.open(path, writing=True) if resume else RunFolder.create(path, overwrite=overwrite)
        if not resume:
            folder.write_json(RECIPE, recipe)
        return _run(settings, folder, recipe=recipe, quiet=quiet)


def _run(settings: RunSettings, folder: RunFolder, *, recipe: Mapping[str, Any], quiet: bool) -> str:
    """The run in a folder that is this process's own. Returns the closing line."""
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)
    with Progress(total=settings.training.iterations, quiet=quiet) as progress, ExitStack() as resources:
        trainer = _trainer(settings, folder, progress, resources)
        place = folder.latest_checkpoint()
        if place is not None:
            _start_parts(trainer)
            trainer.resume(place)
            progress.note(f"resumed {folder.path} at iteration {trainer.step}")
            for line in changes(folder.read_json(RECIPE), recipe):
                progress.note(f"changed: {line}")
            folder.write_json(RECIPE, recipe)
        else:
            trainer.log.truncate(-1)
            trainer.episodes.truncate(-1)
            _warm(trainer, progress)
            _start_parts(trainer)
        trainer.run()
    write_report(folder)
    line = closing_line(folder, trainer.panel)
    if trainer.counters[UPDATES]:
        return line
    return f"no update was made: in {trainer.step} iterations no token had an advantage\n{line}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two resolved recipes differ in: `training.iterations 100 -> 200`. Where files lie is no difference."""
    places = ("run", "warm_start.keep")
    values = [{key: entry["value"] for key, entry in recipe.items() if key not in places} for recipe in (before, now)]
    return [
        f"{key} {values[0].get(key)} -> {values[1].get(key)}"
        for key in sorted({*values[0], *values[1]})
        if values[0].get(key) != values[1].get(key)
    ]


def _trainer(
    settings: RunSettings, folder: RunFolder, progress: Progress, resources: ExitStack | None = None
) -> Trainer:
    """The run, put together.

    Args:
        resources: is given what must be closed at the end, as soon as it is open; None: the caller closes.
    """
    resources = resources or ExitStack()
    parts = Parts(
        reward=started(settings.reward),
        selection=started(settings.selection),
        advantage=started(settings.advantage),
        weights=started(settings.weights),
    )
    setup = build_setup(settings)
    if setup.engine is not None:
        resources.callback(setup.engine.shutdown)
    resources.callback(setup.runner.close)
    parts.frozen = setup.frozen
    sampler, strategies = settings.sampler.started(), [strategy.started() for strategy in settings.strategy]
    updaters = {
        name: _updater(settings, settings.policies[name], policy)
        for name, policy in setup.policies.items()
        if policy.trainable
    }
    collector = _collector(settings, setup, sampler, [strategy.state or strategy for strategy in strategies], folder)
    resources.callback(collector.close)
    keepers = {"runner": setup.runner, "sampler": sampler.state}
    stateful = {place: one.state for place, one in enumerate(strategies) if one.can("state_dict") is not None}
    keepers |= {f"strategy.{place}": collector.keeper(held) for place, held in stateful.items()}
    if collector.holds_state:  # comes back last: with its state an asynchronous one begins to play, by the others
        keepers["supply"] = collector  # its name in checkpoints
    parts.updates = {name: updater.parts for name, updater in updaters.items()}
    others = parts.stateful | {name: held for name, held in keepers.items() if hasattr(held, "state_dict")}
    state = RunState(policies=setup.policies, references={}, updaters=updaters, others=others)
    for name, updater in updaters.items():
        if "start" in (settings.reference, settings.policies[name].reference):
            state.references[name] = _frozen(updater.policy)
    panel = Panel(settings, setup, strategies)
    resources.callback(panel.close)
    return Trainer(
        settings=settings,
        setup=setup,
        collector=collector,
        parts=parts,
        state=state,
        folder=folder,
        panel=panel,
        progress=progress,
    )


def _collector(
    settings: RunSettings, setup: RunSetup, sampler: BoundPart, strategies: Sequence[Any], folder: RunFolder
) -> Collector | AsyncCollector:
    """What gives iterations their episodes: played in between the updates, or beside them."""
    if settings.training.max_staleness:
        return AsyncCollector(settings, setup, sampler, strategies, Journal(folder.path))
    return Collector(settings, setup, sampler, strategies)


def _updater(settings: RunSettings, own: PolicySettings, policy: Any) -> Updater:
    training = settings.training
    return Updater(
        policy=policy,
        optimizer=make_optimizer(own.optimizer or settings.optimizer, policy.module),
        loss=own.loss or settings.loss,
        regularizers=settings.regularizers if own.regularizers is None else own.regularizers,
        how=settings.aggregate.how,
        constant=settings.aggregate.constant,
        epochs=own.epochs or training.epochs,
        minibatches=own.minibatches or training.minibatches,
        token_budget=training.token_budget,
        several=settings.several_updates,
        stop_kl=training.stop_kl,
        agent_gradients=training.agent_gradients,
    )


def _frozen(policy: Any) -> Any:
    """A copy whose weights stay as they are."""
    clone = policy.clone()
    clone.module.requires_grad_(False)
    return clone


def _warm(trainer: Trainer, progress: Progress) -> None:
    settings = trainer.settings
    if settings.warm_start is not None:
        folder = settings.warm_start.keep
        clones = None if folder is None else Clones(folder, settings)
        if clones is None or not clones.restore(trainer.setup.policies):
            warm_start(trainer.setup, settings.warm_start, seed=settings.seed, say=progress.phase)
            if clones is not None:
                clones.keep(trainer.setup.policies)
    for name, reference in trainer.state.references.items():
        reference.module.load_state_dict(trainer.setup.policies[name].module.state_dict())


def _start_parts(trainer: Trainer) -> None:
    """Tell parts with state that policies are ready. On a resumed run their weights are read afterwards."""
    learners = {name: updater.policy for name, updater in trainer.state.updaters.items()}
    for held in trainer.parts.stateful.values():
        held.start(trainer.setup, learners)


def closing_line(folder: RunFolder, panel: Panel) -> str:
    """The intervals of the first and the last evaluation, and below them `success 0.438 -> 0.945 on 256 …`.

    Of returns where nothing tells whether a task was solved.
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
    return "\n".join([*lines, f"{metric} {values[0]} -> {values[1]} on {len(panel.tasks)} held-out tasks"])
