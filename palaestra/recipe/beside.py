"""The two sections of a recipe file that are not settings: `smoke` and `baselines`.

`smoke` says what a smoke run changes. `baselines` says what `palaestra run` compares a system with. Both are taken out
of every file before its layers are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.errors import RecipeError
from palaestra.recipe.origins import LAST, Node, as_layer

SMOKE, BASELINES = "smoke", "baselines"
LAYER = LAST - 1  # of both sections: they win over all files and lose to overrides


def apart(tree: Node) -> tuple[Node, dict[str, Node]]:
    """Split the tree of a recipe file. Returns the settings, and name → section of those that the file has.

    Raises: RecipeError, if one of the sections, or a baseline, is not a mapping.
    """
    if not isinstance(tree.value, dict):  # the layer `chat`
        return tree, {}
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
    """Name of a baseline → its changes, one layer for each file that has some."""
    found: dict[str, list[Node]] = {}
    for section in sections:
        for name, node in section[BASELINES].value.items() if BASELINES in section else ():
            found.setdefault(name, []).append(node)
    return found
