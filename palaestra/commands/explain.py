"""`palaestra explain`: every resolved value with its origin; starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.commands.train import resolve


def run(*, recipe: Sequence[str]) -> None:
    """Print the resolved recipe after all checks."""
    print(resolve(recipe).explain())
