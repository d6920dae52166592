"""`palaestra recipes`: lists the recipes that come with Palaestra. It reads source text and imports no part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from rich.table import Table

from palaestra.catalogue import heads, systems
from palaestra.commands.tables import console
from palaestra.evaluation.tables import cell
from palaestra.recipe.beside import apart
from palaestra.recipe.layers import merge, parts_of
from palaestra.recipe.origins import Mark, Node
from palaestra.recipe.sources import COMPLETE, PLAYED, packaged, read_layers
from palaestra.training.settings import PART_SLOTS

KINDS = {  # first piece of a recipe's name → title of the table
    "": "To begin with",
    "systems": "Systems: palaestra train NAME",
    "played": "Played and not trained: palaestra run NAME",
    "worlds": "Worlds, one recipe each",
    "teams": "Teams",
    "setups": "Setups, for comparisons of methods",
}
TAKES = re.compile(r"takes (.+?) on one core", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of the list.

    Attributes:
        name: the argument of `palaestra train`. kind: a key of `KINDS`.
        about: the first sentence of the recipe's comment, or the title of the system.
        environment: its name. policies: their kinds. takes: training time, from the comment. needs: extras.
    """

    name: str
    kind: str
    about: str
    environment: str
    policies: str
    takes: str
    needs: str


def run() -> None:
    """Print a table for each kind of recipe."""
    found, out = list(listed()), console()
    for kind, title in KINDS.items():
        table = Table("recipe", "what it trains", "on", "policies", "takes", "needs", title=title, title_justify="left",
                      box=None)  # fmt: skip
        for line in (line for line in found if line.kind == kind):
            row = (line.name, line.about, line.environment, line.policies, line.takes, line.needs)
            table.add_row(*map(cell, row))
        out.print(table)
    out.print("\n`palaestra explain NAME` shows one whole; `palaestra train NAME --smoke` tries it in seconds.")


def listed() -> Iterator[Listed]:
    """Every complete recipe. A recipe is complete if it names an environment and policies."""
    titles = {each.name: each.title for each in systems() if not each.variant}
    extras = {(part.slot, part.name): part.extra for part in heads()}
    files = packaged()
    for name, path in files.items():
        tree = reduce(merge, (apart(layer)[0] for layer in read_layers(path)), Node({}, Mark("recipe")))
        if not {"environment", "policies"} <= set(tree.value):
            continue
        folder, text = name.partition("/")[0], path.read_text(encoding="utf-8")
        own = {COMPLETE: "systems", PLAYED: "played"}.get(path.name) if folder in titles else None
        if folder in titles and own is None:
            continue  # a setup that the system's recipe extends
        parts = list(_parts(tree))
        yield Listed(
            name=folder if path.name in (COMPLETE, PLAYED) else name,
            kind=own or (folder if folder in KINDS else ""),
            about=titles[folder] if own == "systems" else _first_sentence(text),
            environment=", ".join(part for slot, path, part in parts if path == "environment"),
            policies=", ".join(dict.fromkeys(part for slot, _, part in parts if slot == "policy")),
            takes=found[1] if (found := TAKES.search(_comment(text))) else "–",
            needs=", ".join(sorted({extras.get((slot, part), "") for slot, _, part in parts} - {""})) or "–",
        )


def _parts(tree: Node) -> Iterator[tuple[str, str, str]]:
    """Slot, path and name of every part that a recipe names."""
    for pattern, slot in PART_SLOTS.items():
        section, star, rest = pattern.partition(".*.")
        named = tree.get(section) if star else None
        places = [(section, key, *rest.split(".")) for key in named.value] if named else [tuple(pattern.split("."))]
        for place in places if named or not star else ():
            for part in parts_of(tree.get(*place)):
                yield slot, ".".join(place), part.value["name"].value


def _comment(text: str) -> str:
    """The comment at the head of a file, as one line."""
    lines = text.splitlines()
    head = lines[: next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    return " ".join(line.lstrip("# ") for line in head)


def _first_sentence(text: str) -> str:
    """The first sentence of the comment, without the name of the file at its start."""
    comment = re.sub(r"^[\w./-]+\.yaml: ", "", _comment(text))
    return re.split(r"(?<=[.:]) (?=[A-Z`])", comment)[0].rstrip(".:")
