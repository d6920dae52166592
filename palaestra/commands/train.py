"""`palaestra train`: checks a recipe, trains it and prints the result."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.runs import resolve
from palaestra.process.terminal import tell
from palaestra.recipe.origins import COMMAND_LINE
from palaestra.training.start import train


def run(*, recipe: Sequence[str], resume: bool, overwrite: bool, quiet: bool, smoke: bool) -> None:
    """Train a recipe.

    Args:
        recipe: recipe files and overrides, or a run folder, whose recipe is used.
        resume: go on from the newest checkpoint. overwrite: replace the run in the folder.
        quiet: print only the result.
        smoke: make everything small. An earlier smoke run of the same recipe is replaced.
    """
    found = resolve(recipe, smoke=smoke)
    overwrite = overwrite or (smoke and found.origin("run") != COMMAND_LINE)
    line = train(found.settings, recipe=found.to_json(), resume=resume, overwrite=overwrite, quiet=quiet)
    if line:  # only one of several processes has a line
        tell(line)
