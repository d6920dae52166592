"""`palaestra methods`: methods of the catalogue and parts of the registry."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from palaestra.catalogue import methods as catalogue
from palaestra.errors import UnknownName, nearest
from palaestra.registry import SLOTS, names, part


def run(*, slot: str | None, without: str | None) -> None:
    """Print the methods, then the parts of each slot."""
    if slot is not None and slot not in SLOTS:
        raise UnknownName(where="--slot", what=f"no slot is called `{slot}`.", options=nearest(slot, SLOTS) or SLOTS)
    console = Console()
    if slot is None and without is None:
        console.print(_methods())
    console.print(_parts([slot] if slot else list(SLOTS), without))


def _methods() -> Table:
    table = Table("method", "arXiv", "slots", "recipe", "status", title="Methods", title_justify="left", box=None)
    for method in catalogue():
        slots = ", ".join(f"{key}: {value}" for key, value in method.slots.items())
        table.add_row(method.title, method.arxiv or "", slots, method.recipe or "", method.status)
    return table


def _parts(slots: list[str], without: str | None) -> Table:
    table = Table("slot", "part", "reads", "uses", "source", "", title="Parts", title_justify="left", box=None)
    for slot in slots:
        for name in names(slot):
            found = part(slot, name)
            if without is None or without not in found.reads:
                table.add_row(slot, name, ", ".join(found.reads), ", ".join(found.uses), found.source, found.summary)
    return table
