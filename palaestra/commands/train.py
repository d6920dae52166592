"""`palaestra train`: check the recipe, run it, print the result."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.runs import resolve
from palaestra.recipe.origins import COMMAND_LINE
from palaestra.training.start import train


def run(*, recipe: Sequence[str], resume: bool, overwrite: bool, quiet: bool, smoke: bool) -> None:
    """Train. With `resume` the run folder's own recipe may stand in for the files.

    Args:
        smoke: everything small; an earlier smoke of the same recipe is replaced.
    """
    found = resolve(recipe, smoke=smoke)
    overwrite = overwrite or (smoke and found.origin("run") != COMMAND_LINE)
    line = train(found.settings, recipe=found.to_json(), resume=resume, overwrite=overwrite, quiet=quiet)
    if line:  # of several processes, one reports
        print(line)
