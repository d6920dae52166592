"""`palaestra train`: check the recipe, run it, print the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palaestra.recipe import Recipe, load, split_arguments
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.training.start import train


def run(*, recipe: Sequence[str], resume: bool, overwrite: bool, quiet: bool) -> None:
    """Train. With `resume` the run folder's own recipe may stand in for the files."""
    found = resolve(recipe)
    line = train(found.settings, recipe=found.to_json(), resume=resume, overwrite=overwrite, quiet=quiet)
    if line:  # of several processes, one reports
        print(line)


def resolve(arguments: Sequence[str]) -> Recipe:
    """A recipe from files and overrides, or from a run folder and overrides."""
    files, overrides = split_arguments(arguments)
    if len(files) == 1 and (Path(files[0]) / RECIPE).exists():
        written = Recipe.from_json(RunFolder.open(files[0]).read_json(RECIPE))
        return written.with_overrides([*overrides, f"run={files[0]}"])
    return load(files, overrides)
