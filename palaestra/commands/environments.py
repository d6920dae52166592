"""`palaestra envs`: lists the environments, or describes one. It reads their source text and imports none of them."""

from __future__ import annotations

import json
import textwrap

from rich.table import Table

from palaestra.catalogue import Declaration, declarations, heads
from palaestra.commands.tables import console
from palaestra.errors import UnknownName, nearest
from palaestra.evaluation.tables import cell
from palaestra.registry import index
from palaestra.registry.extras import installed_bytes, requirements, version, way_out
from palaestra.registry.source_search import PACKAGE

KINDS = {  # package of an environment's module → title of the table
    "palaestra.envs.worlds": "Worlds, built in",
    "palaestra.envs.adapters": "Adapters to other libraries",
    "palaestra.envs.probes": "Probes, small worlds for studies",
    "palaestra.systems": "Worlds of single systems",
    "palaestra": "For tests",
    "": "Of other packages",
}
WIDTH = 100


def run(*, name: str | None) -> None:
    """Print the description of one environment, or list all environments and the extras that they need.

    Args:
        name: of the environment; None: list all.

    Raises: UnknownName, if there is no such environment.
    """
    if name is not None:
        print(_described(name))
        return
    out, known = console(), {part.name: part for part in heads("environment")}
    for kind, title in KINDS.items():
        chosen = {name: target for name, target in index()["environment"].items() if _kind(target) == kind}
        if chosen:
            out.print(_table(title, chosen, known))
    for extra in sorted({part.extra for part in known.values() if part.extra}):
        out.print(f"\nextra {extra}: {packages(extra)}", markup=False, soft_wrap=True)


def _kind(target: str) -> str:
    return next(kind for kind in KINDS if target.startswith(kind))


def _table(title: str, chosen: dict[str, str], known: dict[str, Declaration]) -> Table:
    table = Table("environment", "what it is", "panel", "extra", title=f"\n{title}", title_justify="left", box=None)
    for name, target in sorted(chosen.items()):
        part = known.get(name)
        about, extra = (part.summary, part.extra) if part else (target, "")
        table.add_row(cell(name), cell(about), panel_sizes(name), extra or "–")
    return table


def _described(name: str) -> str:
    """The description of an environment: its summary, abilities, panel, extra and options."""
    targets = index()["environment"]
    if name not in targets:
        raise UnknownName(
            where=f"palaestra envs {name}",
            what=f"there is no environment `{name}`.",
            options=nearest(name, targets),
            remedy="`palaestra envs` lists all.",
        )
    part = next((part for part in declarations(only=targets[name]) if part.name == name), None)
    if part is None:
        return f"{name}: {targets[name]}"
    lines = [f"{name}: {part.summary}", "", *([part.body, ""] if part.body else []), f"code: {part.target}"]
    lines += [f"abilities: {', '.join(part.abilities)}"] if part.abilities else []
    lines += [f"panel: {panel_sizes(name)}"] if panel_sizes(name) != "–" else []
    lines += [f"extra {part.extra}: {packages(part.extra)}"] if part.extra else []
    lines += ["", "options"] if part.options else []
    for option in part.options:
        default = "required" if option.default is None else option.default
        lines.append(f"  {option.name} = {default}")
        lines += textwrap.wrap(option.text, WIDTH, initial_indent="      ", subsequent_indent="      ")
    return "\n".join([*lines, "", f"play it: palaestra play {name} --policy expert"])


def panel_sizes(environment: str) -> str:
    """The number of held-out tasks in the environment's committed panels; "–", if it has no panel."""
    panels = json.loads((PACKAGE / "envs/kit/panels.json").read_text(encoding="utf-8"))
    sizes = [str(entry["n"]) for entry in panels.values() if entry["environment"] == environment]
    return f"{' + '.join(sizes)} tasks" if sizes else "–"


def packages(extra: str) -> str:
    """The packages of an extra with their sizes on disk. If one is missing, also the command that installs them."""
    names = requirements(extra)
    sizes = [f"{installed_bytes(name) / 1e6:.0f} MB" if version(name) else "not installed" for name in names]
    listed = ", ".join(f"{name} ({size})" for name, size in zip(names, sizes, strict=True))
    return f"{listed}. Install with: {way_out(extra)}" if "not installed" in sizes else listed
