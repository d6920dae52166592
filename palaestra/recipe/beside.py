"""Sections of a recipe file that are no settings: `smoke`, what a smoke changes, and `baselines`, what a run is held
against.

They are taken out of every file before layers are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.errors import RecipeError
from palaestra.recipe.origins import LAST, Node, as_layer

SMOKE, BASELINES = "smoke", "baselines"
LAYER = LAST - 1  # of both: above all files, below overrides


def apart(tree: Node) -> tuple[Node, dict[str, Node]]:
    """A recipe without these sections, and the sections that it has, as the top layer.

    Raises: RecipeError, if one is no mapping of keys.
    """
    found = {name: tree.value[name] for name in (SMOKE, BASELINES) if name in tree.value}
    for name, section in found.items():
        sections = section.value.values() if name == BASELINES and isinstance(section.value, dict) else [section]
        wrong = next((one for one in sections if not isinstance(one.value, dict)), None)
        if wrong is not None:
            example = "smoke: {rollout: {tasks: 4}}" if name == SMOKE else "baselines: {one answer: {program: play}}"
            raise RecipeError(
                where=wrong.mark.where,
                what=f"`{name}` takes keys of a recipe, found `{wrong.plain()}`.",
                remedy=f"Write `{example}`.",
            )
    settings = Node({key: node for key, node in tree.value.items() if key not in found}, tree.mark)
    return settings, {name: as_layer(section, LAYER) for name, section in found.items()}


def baselines(sections: Sequence[dict[str, Node]]) -> dict[str, list[Node]]:
    """Name → what it changes, a layer from each file that says something of it."""
    found: dict[str, list[Node]] = {}
    for section in sections:
        for name, node in section[BASELINES].value.items() if BASELINES in section else ():
            found.setdefault(name, []).append(node)
    return found
