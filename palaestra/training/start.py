"""Starts and resumes runs: makes the Trainer from the settings, runs it and writes its results to the run folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from palaestra.data.abilities import has
from palaestra.data.protocols import Experience, complete
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.process.interruption import Stopped, exits_refused, stoppable
from palaestra.store.folder import RESULT, RunFolder
from palaestra.store.lock import writing
from palaestra.store.metrics import UPDATES
from palaestra.training.checkpoint import (
    RunState,
    continued_from,
    differences,
    former_entry,
    former_recipe,
    recipe_values,
)
from palaestra.training.loop import Trainer
from palaestra.training.memory import needs_of, refuse_what_cannot_fit, with_budget
from palaestra.training.monitor.panel import Panel, closing_line
from palaestra.training.parallel import (
    SharedRunner,
    device_of_rank,
    joined,
    refuse_different,
    share_logs,
    spread,
)
from palaestra.training.preflight import Checked, check_start
from palaestra.training.progress import Progress
from palaestra.training.settings import BUDGET, CHOSEN, RunSettings
from palaestra.training.setup import build_setup
from palaestra.training.stages import stages_of, started
from palaestra.training.warm_start import Clones, demonstrated, kept_line, warm_start


def train(
    settings: RunSettings,
    *,
    recipe: Mapping[str, Any],
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> str:
    """Train a recipe from its start, or from its newest checkpoint.

    Args:
        recipe: the resolved recipe with origins, for the run folder.
        resume: go on from the newest checkpoint in the run folder; without one, start anew.
        overwrite: replace a run in the folder. quiet: show no progress.

    Returns: the closing line, such as `success 0.438 -> 0.945 on 256 held-out tasks`, below the intervals of both
        numbers. With several processes, it is empty on all but the first.
    Raises: RunFolderError, RecipeError, CheckpointError, NoSignal.
    """
    settings = settings.model_copy(update={"device": device_of_rank(settings.device)})
    refuse_what_cannot_fit(settings)  # before a folder is made
    path = settings.run or f"runs/{settings.name}"
    path = os.path.expanduser(path) if path.startswith("~/") else path  # a shell leaves `run=~/…` as it is
    with exits_refused():
        checked = check_start(settings, recipe)
    with exits_refused(), joined(settings) as ranks, ExitStack() as resources:
        if not ranks.main:  # this rank's logs are the same as the first rank's, so they are thrown away
            folder = RunFolder.create(resources.enter_context(TemporaryDirectory()) + "/run")
            settings, recipe = _with_budget(settings, recipe, ranks)
            return _run(settings, folder, checked, ranks=ranks, recipe=recipe, quiet=True)
        resources.enter_context(writing(path, make=not resume))
        folder = RunFolder.open(path, writing=True) if resume else RunFolder.create(path, overwrite=overwrite)
        settings, recipe = _with_budget(settings, recipe, ranks, folder if resume else None)
        if not resume:
            folder.write_recipe(recipe)
        with undone_if_it_cannot_begin(folder):
            return _run(settings, folder, checked, ranks=ranks, recipe=recipe, quiet=quiet)


def _with_budget(
    settings: RunSettings, recipe: Mapping[str, Any], ranks: Ranks, former: RunFolder | None = None
) -> tuple[RunSettings, Mapping[str, Any]]:
    """Settings and recipe with the token budget of the recipe, of the resumed run, or of the choice at the start.

    All ranks have the same.

    Args:
        former: of the run that is resumed; None for a new run.
    """
    if settings.training.token_budget is not None:
        return settings, recipe
    entry = {"value": None, "origin": CHOSEN} | ({} if former is None else former_entry(former, BUDGET))
    chosen = with_budget(settings).training if entry["value"] is None else settings.training
    budget = int(ranks.texts(str(entry["value"] or chosen.token_budget))[0])
    training = settings.training.model_copy(update={"token_budget": budget})
    settings = settings.model_copy(update={"training": training})
    return settings, {**recipe, BUDGET: {"value": budget, "origin": entry["origin"]}}


@contextmanager
def undone_if_it_cannot_begin(folder: RunFolder) -> Iterator[None]:
    """A context for a run that may replace a former one.

    If it ends before its first iteration, the former run is put back. A run that a signal ended stays, if it has a
    checkpoint.
    """
    try:
        yield
    except BaseException as error:
        if not folder.replaces:
            raise
        if isinstance(error, KeyboardInterrupt) and folder.latest_checkpoint() is not None:
            folder.settle()
            raise
        folder.give_back()
        if isinstance(error, Stopped):
            error.remedy = f"the new run had not begun; the former run in {folder.path} is as it was"
        raise
    folder.settle()


def _run(
    settings: RunSettings, folder: RunFolder, checked: Checked, *, ranks: Ranks, recipe: Mapping[str, Any], quiet: bool
) -> str:
    """Run in this folder, which no other process writes. Returns the closing line."""
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)
    with Progress(total=settings.training.iterations, quiet=quiet) as progress, ExitStack() as resources:
        interruption = resources.enter_context(stoppable())
        interruption.notify = progress.note
        trainer = _trainer(settings, folder, progress, resources, ranks=ranks, source=checked.source)
        trainer.state.recipe = recipe_values(recipe)
        trainer.interruption = interruption
        of_policies = (line for policy in trainer.setup.trained.values() for line in policy.notes)
        for line in dict.fromkeys([*checked.notes, *trainer.experience.notes, *of_policies]):
            progress.note(line)
        place = ranks.texts(str(continued_from(folder, say=progress.warn) or ""))[0]
        if place:
            _start_learners(trainer)
            share_logs(folder, ranks)
            trainer.resume(Path(place))
            progress.note(f"resumed {folder.path} at iteration {trainer.step}")
            if ranks.main:
                former = former_recipe(folder, Path(place), say=progress.warn)
                for line in differences(former, trainer.state.recipe):
                    progress.note(f"changed: {line}")
                folder.write_recipe(recipe)
                folder.discard(RESULT)
        else:
            if recipe.get(BUDGET, {}).get("origin") == CHOSEN and needs_of(settings):
                progress.note(f"{BUDGET}={settings.training.token_budget}: {CHOSEN} by the free memory, and kept")
            trainer.log.truncate(-1)
            trainer.episodes.truncate(-1)
            _warm(trainer, progress)
            _start_learners(trainer)
        refuse_different(dict(trainer.state.modules), ranks)
        with interruption.deferred(), _reported(trainer):
            trainer.run()
            if not ranks.main:
                return ""
            line = closing_line(folder, trainer.panel)
            trainer.keeper.report(trainer.step, now=True, ended=", ended")
            folder.write_json(RESULT, {"step": trainer.step, "line": line.splitlines()[-1]})
    if trainer.counters[UPDATES] and trainer.movement.is_missing:
        return f"no update changed a weight\n{line}"
    if trainer.counters[UPDATES]:
        return line
    return f"no update was made: in {trainer.step} iterations no token had an advantage\n{line}"


@contextmanager
def _reported(trainer: Trainer) -> Iterator[None]:
    """A context for the loop. If it is cut, what is finished is kept, and the report says how the run ended."""
    keeper, folder = trainer.keeper, trainer.folder.path
    try:
        yield
    except Stopped as stop:
        if not stop.at_once and keeper.saved < trainer.step:  # between two iterations; otherwise weights may be halfway
            keeper.save(trainer.step, trainer.counters)
        keeper.report(trainer.step, now=True, ended=f", stopped by {stop}")
        stop.silent = not trainer.setup.ranks.main
        stop.remedy = (
            f"iteration {keeper.saved} of {trainer.settings.training.iterations} is kept; "
            f"`palaestra train {shlex.quote(str(folder))} --resume` continues from there"
        )
        raise
    except BaseException as error:
        keeper.report(trainer.step, now=True, ended=f", ended by {type(error).__name__}")
        raise


def _trainer(
    settings: RunSettings,
    folder: RunFolder,
    progress: Progress,
    resources: ExitStack | None = None,
    *,
    ranks: Ranks | None = None,
    source: Any = None,
) -> Trainer:
    """Build the trainer of a run.

    Args:
        resources: gets the engine, the runner and the like as soon as they are open, and closes them at the end. None:
            the caller closes them.
        ranks: the processes that work on the run; None: this one alone.
        source: the environment that gives the tasks; None: it is made.
    """
    resources, ranks = resources or ExitStack(), ranks or OneProcess()
    setup = build_setup(settings, ranks, source=source)
    setup.folder = folder.path
    if setup.engine is not None:
        resources.callback(setup.engine.shutdown)
    resources.callback(setup.runner.close)
    if ranks.world > 1:
        setup.runner = SharedRunner(setup.runner, ranks)
    experience = settings.experience.part.target(setup, **settings.experience.options)
    experience = complete(experience, Experience, where=f"experience: {settings.experience.name}")
    resources.callback(experience.close)
    learners = started(settings.learner)
    stages = stages_of(
        settings, setup.source, learners=learners, trained=setup.trained, make=started, frozen=setup.frozen
    )
    of_recipe = {f"learner.{place}": learner.state for place, learner in enumerate(learners)}
    state = RunState(setup.policies, learners=stages.stateful | of_recipe, others=experience.stateful())
    panel = Panel(settings, setup, experience)
    resources.callback(panel.close)
    return Trainer(
        settings=settings,
        setup=setup,
        experience=experience,
        stages=stages,
        learners=state.learners,
        state=state,
        folder=folder,
        panel=panel,
        progress=progress,
    )


def _frozen(policy: Any) -> Any:
    """A copy of the policy whose weights never change."""
    clone = policy.clone()
    clone.module.requires_grad_(False)
    return clone


def _warm(trainer: Trainer, progress: Progress) -> None:
    settings = trainer.settings
    if settings.warm_start is not None:
        source = trainer.setup.source
        if has(source, "tasks"):
            trainer.panel.note(source, demonstrated(source, settings.warm_start, seed=settings.seed))
        folder = settings.warm_start.keep
        clones = None if folder is None else Clones(folder, settings)
        if clones is None or not clones.restore(trainer.setup.policies):
            done = warm_start(trainer.setup, settings, say=progress.phase)
            if (line := kept_line(done)) is not None:
                progress.note(line)
            if clones is not None and trainer.setup.ranks.main:
                clones.keep(trainer.setup.policies)


def _start_learners(trainer: Trainer) -> None:
    """Make the reference policies, and start the learners and the parts with state.

    A resumed run reads all weights from its checkpoint afterwards.
    """
    settings, setup = trainer.settings, trainer.setup
    for name, policy in setup.trained.items():
        if "start" in (settings.reference, settings.policies[name].reference):
            trainer.state.references[name] = _frozen(policy)
    spread([*setup.trained.values(), *trainer.state.references.values()], setup.ranks)
    for learner in trainer.learners.values():
        learner.start(setup, setup.trained)
        for module in learner.modules().values():
            module.to(setup.device)
