"""Refuses clashes: choices of a recipe that parts declare as wrong in combination (`palaestra.registry.clashes`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from palaestra.errors import RecipeError
from palaestra.recipe.layers import slot_at
from palaestra.recipe.parts import Entry, RecipePart
from palaestra.registry.clashes import Clash, SettingPattern


def refuse_together(parts: Sequence[RecipePart], rows: Mapping[str, Entry]) -> None:
    """Refuse a recipe that combines a part with a choice that the part excludes.

    Raises: RecipeError, with the place of the later choice, the reason and the way out.
    """
    for place, used in enumerate(parts):
        for clash in used.part.clashes:
            if _have(used, clash.options) and all(used.values.get(key) is not None for key in clash.has):
                _refuse(clash, used, parts[place + 1 :] if clash.ordered else parts, rows)


def _have(used: RecipePart, options: Mapping[str, Collection[Any]]) -> bool:
    values = used.values
    return all(key in values and values[key] in allowed for key, allowed in options.items())


def _refuse(clash: Clash, used: RecipePart, others: Sequence[RecipePart], rows: Mapping[str, Entry]) -> None:
    if clash.other is None:
        options = ", ".join(f"`{key}: {used.values[key]}`" for key in (*clash.options, *clash.has))
        raise RecipeError(where=used.mark.where, what=f"`{used.name}` has {options}.\n  {clash.why}", remedy=clash.ways)
    if isinstance(clash.other, SettingPattern):
        row = rows.get(clash.other.key)
        if row is not None and row.value in clash.other.values:
            where = used.mark.where if row.mark.source == "default" else row.mark.where
            what = f"`{used.name}` does not go with `{clash.other.key}: {row.value}`.\n  {clash.why}"
            raise RecipeError(where=where, what=what, remedy=clash.ways)
        return
    for other in others:
        slot = slot_at(tuple(other.path.split(".")))
        named = slot == clash.other.slot and other.name in (clash.other.names or (other.name,))
        if other is not used and named and _have(other, clash.other.options):
            what = (
                f"`{used.name}` does not go with `{other.name}`{' after it' if clash.ordered else ''}.\n  {clash.why}"
            )
            raise RecipeError(where=other.mark.where, what=what, remedy=clash.ways)
