"""`palaestra plan`: shows the memory that a recipe needs, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.runs import resolve
from palaestra.models.devices import free_bytes, run_device
from palaestra.process.terminal import visible
from palaestra.training.memory import further_lines, needs_of, refuse_what_cannot_fit, shown
from palaestra.training.preflight import check_start


def run(*, recipe: Sequence[str], smoke: bool = False) -> None:
    """Print what the pretrained models of a recipe need, and what is free on its device.

    Raises: RecipeError, if it does not fit.
    """
    found = resolve(recipe, smoke=smoke)
    settings = found.settings
    run_device(settings.device)
    for line in check_start(settings, found.to_json()).notes:
        print(visible(line))
    rows = needs_of(settings)
    if not rows:
        print("The recipe loads no pretrained model. Models that are made on the spot need little memory.")
        return
    width = max(len(row.what) for row in rows)
    for row in rows:
        print(f"{row.what:<{width}}  {shown(row.size):>9}  {row.how}")
    print(f"{'together':<{width}}  {shown(sum(row.size for row in rows)):>9}")
    for line in further_lines(settings):
        print(line)
    free = free_bytes(settings.device)
    if free is not None:
        print(f"free on {settings.device}: {shown(free)}")
    refuse_what_cannot_fit(settings)
