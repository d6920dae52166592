"""`palaestra explain`: every resolved value with its origin; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.train import resolve
from palaestra.models.devices import run_device
from palaestra.recipe.passes import lines, planned_passes


def run(*, recipe: Sequence[str]) -> None:
    """Print the resolved recipe after all checks."""
    found = resolve(recipe)
    run_device(found.settings.device)
    print(found.explain())
    print("\n" + "\n".join(lines(planned_passes(found.settings, found.parts))))
