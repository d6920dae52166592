"""`palaestra envs`: list environments, read from source text: none is imported."""

from __future__ import annotations

from rich.table import Table

from palaestra.catalogue import declarations
from palaestra.commands.tables import console
from palaestra.registry import index


def run() -> None:
    """Print a line an environment."""
    table = Table("environment", "what it is", "options", box=None)
    known = {part.name: part for part in declarations() if part.slot == "environment"}
    for name, target in sorted(index()["environment"].items()):
        part = known.get(name)
        cells = (part.summary, ", ".join(option.name for option in part.options)) if part else (target, "")
        table.add_row(name, *cells)
    console().print(table)
