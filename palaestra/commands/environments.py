"""`palaestra envs`: list environments, read from source text: none is imported."""

from __future__ import annotations

import json

from rich.table import Table

from palaestra.catalogue import declarations, resource
from palaestra.commands.extras import installed_bytes, requirements, version, way_out
from palaestra.commands.tables import console
from palaestra.registry import index


def run() -> None:
    """Print a line an environment, then one for each extra that any of them needs."""
    table = Table("environment", "what it is", "panel", "extra", box=None)
    known = {part.name: part for part in declarations() if part.slot == "environment"}
    for name, target in sorted(index()["environment"].items()):
        part = known.get(name)
        table.add_row(name, part.summary if part else target, panel_sizes(name), (part.extra if part else "") or "–")
    out = console()
    out.print(table)
    for extra in sorted({part.extra for part in known.values() if part.extra}):
        out.print(f"\nextra {extra}: {packages(extra)}", markup=False, soft_wrap=True)


def panel_sizes(environment: str) -> str:
    """How many held-out tasks its committed panels have."""
    panels = json.loads(resource("envs/panels.json").read_text(encoding="utf-8"))
    sizes = [str(entry["n"]) for entry in panels.values() if entry["environment"] == environment]
    return f"{' + '.join(sizes)} tasks" if sizes else "–"


def packages(extra: str) -> str:
    """The packages of an extra with their sizes on disk, and how to install what is missing."""
    names = requirements(extra)
    sizes = [f"{installed_bytes(name) / 1e6:.0f} MB" if version(name) else "not installed" for name in names]
    listed = ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
    return f"{listed}. Install with: {way_out(extra)}" if "not installed" in sizes else listed
