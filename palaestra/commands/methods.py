"""`palaestra methods`: the catalogue and the parts, read from source text: no part is imported."""

from __future__ import annotations

import shlex

from rich.markup import escape
from rich.table import Table

from palaestra.catalogue import Declaration, declarations, studies
from palaestra.catalogue import methods as catalogue
from palaestra.catalogue.places import CHECKOUT
from palaestra.catalogue.studies import trained_with
from palaestra.commands.tables import console
from palaestra.errors import UnknownName, nearest
from palaestra.recipe.feasibility import GIVEN_BY
from palaestra.registry import SLOTS, index


def run(*, slot: str | None, without: str | None) -> None:
    """Print the methods, then the parts of each slot, outside packages' too.

    Args:
        without: leave out the parts that read this column or use this ability.

    Raises: UnknownName, if there is no such slot.
    """
    if slot is not None and slot not in SLOTS:
        raise UnknownName(where="--slot", what=f"no slot is called `{slot}`.", options=nearest(slot, SLOTS) or SLOTS)
    if slot is None and without is None:
        console().print(_methods())
    console().print(_parts([slot] if slot else list(SLOTS), without))


def _methods() -> Table:
    columns = ("method", "arXiv", "slot: parts", "palaestra train …", "status")
    table = Table(*columns, title="Methods", title_justify="left", box=None)
    known = studies(CHECKOUT)  # a wheel comes without them: then only the recipe is told
    for method in catalogue():
        own = [study for study in known if method.name in study.methods]
        words = trained_with(method, own) if known or method.run else [method.recipe or ""]
        parts = "\n".join(f"{slot}: {', '.join(names)}" for slot, names in method.slots.items())
        table.add_row(method.title, method.arxiv or "", parts, escape(shlex.join(filter(None, words))), method.status)
    return table


def _parts(slots: list[str], without: str | None) -> Table:
    table = Table("slot", "part", "reads", "uses", "source", "", title="Parts", title_justify="left", box=None)
    known = {(part.slot, part.name): part for part in declarations()}
    for slot in slots:
        for name, target in sorted(index()[slot].items()):
            part = known.get((slot, name))
            if part is None:  # of another package
                table.add_row(slot, name, "", "", target, "")
            elif without is None or without not in _needs(part):
                table.add_row(slot, name, ", ".join(part.reads), ", ".join(part.uses), part.source, part.summary)
    return table


def _needs(part: Declaration) -> set[str]:
    """Columns and abilities, and the abilities that columns come from."""
    return {*part.reads, *part.uses, *(GIVEN_BY[column] for column in part.reads if column in GIVEN_BY)}
