"""`palaestra methods`: lists systems and parts, or describes one system. It reads source text and imports no part."""

from __future__ import annotations

import shlex
import textwrap

from rich.table import Table

from palaestra.catalogue import Declaration, System, heads, studies, system, systems
from palaestra.catalogue.studies import trained_with
from palaestra.commands.tables import console
from palaestra.errors import UnknownName, nearest
from palaestra.evaluation.tables import cell
from palaestra.registry import SLOTS, index
from palaestra.registry.column_names import ability_of
from palaestra.registry.source_search import PACKAGE

WIDTH = 100


def run(*, name: str | None, slot: str | None, without: str | None) -> None:
    """Print the description of one system, or list all systems and the parts of each slot.

    Parts of other installed packages are listed too.

    Args:
        name: of a system; None: list all.
        slot: list only the parts of this slot.
        without: leave out the parts that read this column or use this ability.

    Raises: UnknownName, if there is no such system or slot.
    """
    if slot is not None and slot not in SLOTS:
        raise UnknownName(where="--slot", what=f"there is no slot `{slot}`.", options=nearest(slot, SLOTS) or SLOTS)
    if name is not None:
        print(_described(system(name)))
        return
    if slot is None and without is None:
        console().print(_systems())
    console().print(_parts([slot] if slot else list(SLOTS), without))


def _systems() -> Table:
    table = Table("name", "system", "arXiv", "slot: parts", "status", title="Systems", title_justify="left", box=None)
    for each in systems():
        parts = "\n".join(f"{slot}: {', '.join(names)}" for slot, names in each.parts.items())
        table.add_row(f"  {each.name}" if each.variant else each.name, each.title, each.arxiv or "", parts, each.status)
    return table


def _described(each: System) -> str:
    """The description of a system: its formula, its use, its parts, and the commands that run it."""
    lines = [each.title + (f" (arXiv {each.arxiv})" if each.arxiv else "")]
    lines += ["", *(f"    {formula}" for formula in each.formulas)] if each.formulas else []
    lines += ["", *textwrap.wrap(each.when, WIDTH)] if each.when else []
    known = {(part.slot, part.name): part for part in heads(*each.parts)}
    lines += ["", "parts"]
    for slot, names in each.parts.items():
        for name in names:
            part = known.get((slot, name))
            lines.append(f"  {slot}: {name}" + (f"  {part.summary}" if part else ""))
    others = [other.name for other in systems() if other.folder == each.folder and other.name != each.name]
    lines += ["", f"related: {', '.join(others)}"] if others else []
    lines += ["", f"status: {each.status}"]
    words = trained_with(each, [study for study in studies(PACKAGE.parent) if each.name in study.methods])
    lines += ["", *([f"train it:   palaestra train {shlex.join(words)}"] if words else [])]
    lines += [f"run it:     palaestra run {each.played}"] if each.played else []
    if each.overlay and "advantage" in each.parts:  # the second arm differs only in the estimator
        lines.append(
            f'compare it: palaestra compare SETUP.yaml {each.overlay} --arm "grpo: {each.overlay} advantage=grpo"'
        )
    return "\n".join(lines)


def _parts(slots: list[str], without: str | None) -> Table:
    table = Table("slot", "part", "reads", "uses", "source", "", title="Parts", title_justify="left", box=None)
    known = {(part.slot, part.name): part for part in heads(*slots)}
    for slot in slots:
        for name, target in sorted(index()[slot].items()):
            part = known.get((slot, name))
            if part is None:  # of another package
                table.add_row(slot, cell(name), "", "", cell(target), "")
            elif without is None or without not in _needs(part):
                table.add_row(slot, name, ", ".join(part.reads), ", ".join(part.uses), part.source, part.summary)
    return table


def _needs(part: Declaration) -> set[str]:
    """The columns and abilities that a part needs, and the abilities that these columns come from."""
    return {*part.reads, *part.uses, *(ability for column in part.reads if (ability := ability_of(column)))}
