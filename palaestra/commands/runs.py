"""What the arguments of a command name: recipe files and overrides, or the folder of a run and its trained policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palaestra.data import RunSetup
from palaestra.errors import RunFolderError
from palaestra.recipe import Recipe, is_recipe, load, split_arguments
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.training.checkpoint import load_policy
from palaestra.training.settings import RunSettings
from palaestra.training.setup import build_setup


def resolve(arguments: Sequence[str], *, smoke: bool = False) -> Recipe:
    """A recipe from files and overrides, or from a run folder and overrides.

    Args:
        smoke: the same recipe with everything small; see `palaestra.recipe.smoke`.

    Raises: RunFolderError, if the only argument names a run that is not there; as `load`.
    """
    files, overrides = split_arguments(arguments)
    folder = run_folder(arguments)
    if folder is None:
        return load(files, overrides, smoke=smoke)
    written = Recipe.from_json(folder.read_json(RECIPE))
    if smoke:
        return written.with_overrides(overrides).smoked()
    return written.with_overrides([*overrides, f"run={folder.path}"])


def run_folder(arguments: Sequence[str]) -> RunFolder | None:
    """The run folder among the arguments, if one is given instead of recipe files.

    Raises: RunFolderError, if the argument can only mean a run folder and there is no run; it names the runs nearby.
    """
    files, _ = split_arguments(arguments)
    return RunFolder.open(files[0]) if len(files) == 1 and means_a_run(files[0]) else None


def means_a_run(text: str) -> bool:
    """Whether an argument is the folder of a run, or a path such as `runs/name` that is neither that nor a recipe."""
    path = Path(text)
    return (path / RECIPE).exists() or ("/" in text and not path.suffix and not is_recipe(text))


def open_run(path: str, checkpoint: int | None) -> tuple[Recipe, RunSetup]:
    """A run's recipe and its setup with trained weights; the caller closes its runner."""
    folder = RunFolder.open(path)
    recipe = Recipe.from_json(folder.read_json(RECIPE))
    settings = recipe.settings.model_copy(update={"device": "cpu"})  # to be written, which any machine can
    return recipe, trained_setup(settings, folder, checkpoint)


def trained_setup(settings: RunSettings, folder: RunFolder, checkpoint: int | None) -> RunSetup:
    """A setup with the weights of a checkpoint; the caller closes its runner. Raises: as `load_weights`."""
    setup = build_setup(settings)
    try:
        load_weights(setup, folder, checkpoint)
    except BaseException:
        setup.runner.close()
        raise
    return setup


def load_weights(setup: RunSetup, folder: RunFolder, checkpoint: int | None) -> None:
    """Weights of a checkpoint into all policies that have any.

    Raises: RunFolderError, if there is no such checkpoint.
    """
    place = checkpoint_of(folder, checkpoint)
    for name, policy in setup.policies.items():
        if policy.module is not None:
            load_policy(place, name, policy)


def checkpoint_of(folder: RunFolder, checkpoint: int | None) -> Path:
    """The folder of a checkpoint, of the newest for None. Raises: RunFolderError, if there is none."""
    place = folder.latest_checkpoint() if checkpoint is None else folder.checkpoint(checkpoint)
    if place is None or not place.exists():
        raise RunFolderError(
            where=str(folder.path),
            what="it has no checkpoint." if place is None else f"it has no checkpoint of iteration {checkpoint}.",
            options=[str(step) for step in folder.checkpoint_steps()],
            remedy="Train longer, or set training.checkpoint_every.",
        )
    return place
