"""`palaestra explain`: every resolved value with its origin; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.train import resolve
from palaestra.models.devices import run_device


def run(*, recipe: Sequence[str]) -> None:
    """Print the resolved recipe after all checks."""
    found = resolve(recipe)
    run_device(found.settings.device)
    print(found.explain())
