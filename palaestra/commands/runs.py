"""Reads the arguments of commands: recipe files and overrides, or a run folder. Loads the policies of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palaestra.data import RunSetup
from palaestra.errors import CheckpointError, RunFolderError
from palaestra.process.terminal import say, visible
from palaestra.recipe import Recipe, is_recipe, load, split_arguments
from palaestra.recipe.loading import smoked
from palaestra.recipe.origins import folder_override
from palaestra.registry.signatures import reads_only
from palaestra.registry.trust import is_as_written, refuse_code_of
from palaestra.store.checksums import log_fault
from palaestra.store.folder import DECISIVE, RECIPE, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import read
from palaestra.training.checkpoint import damage, load_policy, newest_intact, read_state
from palaestra.training.settings import RunSettings
from palaestra.training.setup import build_setup

MODEL_FILES = ("config.json", "adapter_config.json", "network.json")


def resolve(arguments: Sequence[str], *, smoke: bool = False) -> Recipe:
    """The recipe of files and overrides, or of a run folder and overrides.

    Args:
        smoke: make everything small (`palaestra.recipe.smoke`).

    Raises: RunFolderError, if the only file can only mean a run folder and holds no run; as `load`.
    """
    files, overrides = split_arguments(arguments)
    folder = run_folder(arguments)
    if folder is None:
        return load(files, overrides, smoke=smoke)
    written = recipe_of(folder)
    if smoke:
        return smoked(written.with_overrides(overrides))
    return written.with_overrides([*overrides, folder_override("run", str(folder.path))])


def recipe_of(folder: RunFolder) -> Recipe:
    """The recipe of a run. A line on the terminal says so if `recipe.json` was changed since it was written.

    Raises: RunFolderError, if it cannot be read; RecipeError, if it names code that is not to be trusted
        (`palaestra.registry.trust`), unless it is only read (`palaestra.registry.signatures`); as `Recipe.from_json`.
    """
    entries = folder.read_recipe()
    if not is_as_written(folder.path):
        say(visible(f"{folder / RECIPE} is not as it was written: it was damaged, or changed by hand"))
    if not reads_only():
        refuse_code_of(folder.path, entries)
    return Recipe.from_json(entries)


def run_folder(arguments: Sequence[str]) -> RunFolder | None:
    """The run folder, if the arguments name one instead of recipe files.

    Raises: RunFolderError, if the argument can only mean a run folder and holds no run. The error names runs nearby.
    """
    files, _ = split_arguments(arguments)
    if len(files) == 1 and any((Path(files[0]) / name).is_file() for name in MODEL_FILES):
        raise RunFolderError(
            where=files[0],
            what="it is the folder of a model, which has no tasks.",
            remedy=f"Name a recipe or a run for its tasks: palaestra eval RECIPE --policy {files[0]}",
        )
    return RunFolder.open(files[0]) if len(files) == 1 and means_a_run(files[0]) else None


def means_a_run(text: str) -> bool:
    """Whether an argument means a run folder: it holds a run, or is a path such as `runs/name` and not a recipe."""
    path = Path(text)
    return (path / RECIPE).exists() or ("/" in text and not path.suffix and not is_recipe(text))


def open_run(path: str, checkpoint: int | None) -> tuple[Recipe, RunSetup]:
    """The recipe of a run, and its setup with the trained weights. The caller closes the runner of the setup."""
    folder = RunFolder.open(path)
    recipe = recipe_of(folder)
    settings = recipe.settings.model_copy(update={"device": "cpu"})  # to write weights needs no other device
    return recipe, trained_setup(settings, folder, checkpoint)


def trained_setup(settings: RunSettings, folder: RunFolder, checkpoint: int | Path | None) -> RunSetup:
    """A setup with the weights of a checkpoint. The caller closes its runner. Raises: as `load_weights`."""
    setup = build_setup(settings)
    try:
        load_weights(setup, folder, checkpoint)
    except BaseException:
        setup.runner.close()
        raise
    return setup


def load_weights(setup: RunSetup, folder: RunFolder, checkpoint: int | Path | None) -> None:
    """Load the weights of a checkpoint into all policies that have weights.

    Args:
        checkpoint: its iteration, or its folder as `checkpoint_of` gives it; None: the newest.

    Raises: as `checkpoint_of`; CheckpointError, if the weights do not fit.
    """
    place = checkpoint if isinstance(checkpoint, Path) else checkpoint_of(folder, checkpoint)
    for name, policy in setup.policies.items():
        if policy.module is not None:
            load_policy(place, name, policy)


def checkpoint_of(folder: RunFolder, checkpoint: int | None) -> Path:
    """The folder of a checkpoint; None means the newest. A damaged one is passed over, with a line on the terminal.

    Raises: RunFolderError, if there is no such checkpoint; CheckpointError, if it is damaged, or all are.
    """
    place = folder.checkpoint(checkpoint) if checkpoint is not None else None
    if checkpoint is None:
        place, passed = newest_intact(folder, logs=False)
        for line in passed:
            say(visible(f"not used: {line}"))
        if place is not None and (note := _about_logs(folder, place)):
            say(visible(f"{folder.path}: {note}"))
    if place is None or not place.exists():
        raise RunFolderError(
            where=str(folder.path),
            what="the run has no checkpoint."
            if place is None
            else f"the run has no checkpoint of iteration {checkpoint}.",
            options=[str(step) for step in folder.checkpoint_steps()],
            remedy="Train longer, or set training.checkpoint_every.",
        )
    fault = damage(place) if checkpoint is not None else None
    if fault is not None:
        raise CheckpointError(
            where=str(place),
            what=f"this checkpoint is damaged: {fault}.",
            options=[str(step) for step in folder.checkpoint_steps() if step != checkpoint],
            remedy="Copy the file back, or name another iteration.",
        )
    return place


def _about_logs(folder: RunFolder, place: Path) -> str:
    """What the logs say of a checkpoint: that they were changed since, or that the run went on. Empty, if neither."""
    fault = log_fault(place, folder.path, *DECISIVE)
    if fault is not None:
        return f"{fault}; the weights are not affected"
    step = read_state(place)["step"]
    try:
        reached = max((line[STEP] for line in read(folder.path)), default=step)
    except RunFolderError as error:  # a checkpoint of an earlier version, or a line after it
        return f"{error.where}: {error.what}"
    if reached <= step:
        return ""
    return f"iteration {step}, its newest checkpoint; the run came to iteration {reached}"
