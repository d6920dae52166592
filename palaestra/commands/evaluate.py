"""`palaestra eval`: a run folder's policies, or a scripted one, on the panel of evaluation tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from palaestra.bound import BoundPart, bind
from palaestra.commands.train import resolve
from palaestra.data import RunSetup
from palaestra.errors import RunFolderError
from palaestra.evaluation.panels import failure_line, interval_line, result_line
from palaestra.recipe import Recipe, split_arguments
from palaestra.rollout.programs import roles_of
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.training.checkpoint import load_policy, read_state
from palaestra.training.monitor import Panel
from palaestra.training.settings import PolicySettings, RoleSettings, RunSettings
from palaestra.training.setup import build_setup


def run(*, recipe: Sequence[str], policy: str | None, checkpoint: int | None) -> None:
    """Print the interval and, last, `success 0.912 on 256 held-out tasks`.

    "Held-out" is said of a run whose training met none of the tasks; of a recipe or a scripted policy, the split is.
    """
    found = resolve(recipe)
    settings = scripted(found.settings, policy) if policy else found.settings
    folder = run_folder(recipe) if policy is None else None
    setup = build_setup(settings) if folder is None else trained_setup(settings, folder, checkpoint)
    with closing(setup.runner), closing(Panel(settings, setup)) as panel:
        panel.load_state_dict({} if folder is None else read_state(checkpoint_of(folder, checkpoint)).get("panel", {}))
        evaluation, _ = panel.play()
        shared = panel.shared
    print(interval_line(evaluation))
    if evaluation.failed:
        print(failure_line(evaluation))
    print(result_line(evaluation, shared=shared))


def run_folder(arguments: Sequence[str]) -> RunFolder | None:
    """The run folder among the arguments, if one is given instead of recipe files."""
    files, _ = split_arguments(arguments)
    given = len(files) == 1 and (Path(files[0]) / RECIPE).exists()
    return RunFolder.open(files[0]) if given else None


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
    """Where a checkpoint is, the newest for None. Raises: RunFolderError, if there is none."""
    place = folder.latest_checkpoint() if checkpoint is None else folder.checkpoint(checkpoint)
    if place is None or not place.exists():
        raise RunFolderError(
            where=str(folder.path),
            what="it has no checkpoint." if place is None else f"it has no checkpoint of iteration {checkpoint}.",
            options=[str(step) for step in folder.checkpoint_steps()],
            remedy="Train longer, or set training.checkpoint_every.",
        )
    return place


def scripted(settings: RunSettings, policy: str) -> RunSettings:
    """The same run with every agent of the environment played by a scripted policy; a team's program is left out, as
    only its environment knows what is good or legal."""
    player = PolicySettings(policy=bind("policy", BoundPart(name=policy)), trainable=False)
    role = RoleSettings(policy=policy, context=bind("context", RoleSettings().context))
    changed: dict[str, Any] = {"policies": {policy: player}, "agents": {"*": role}}
    if roles_of(settings.program) != ():
        changed["program"] = bind("program", BoundPart(name="play"))
    return settings.model_copy(update={**changed, "reference": None})
