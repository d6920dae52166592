"""Finds idle options and settings: those that do nothing because of another setting, as parts and sections declare.

A recipe is refused if it sets an idle option to another value than its default, in the same layer as the setting that
makes it idle or in a later one. A value from an earlier layer is ignored. `explain` shows no idle options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from palaestra.errors import RecipeError
from palaestra.recipe.layers import Place, slot_at
from palaestra.recipe.origins import WRITTEN_DOWN, Mark, Node
from palaestra.registry import Section, ignored


def refuse_idle(
    idle: Mapping[str, str], values: Mapping[str, Any], model: Any, mark: Callable[[str], Mark | None], *, owner: str
) -> None:
    """Refuse the idle options that have another value than their default.

    Args:
        idle: option → the condition that makes it idle, from `palaestra.registry.ignored`.
        values: of all options. model: their pydantic schema.
        mark: gives the place where an option was written; None, if it was not written.
        owner: the part or section that has the options, for the message.

    Raises: RecipeError, with the place of the option.
    """
    for name, condition in idle.items():
        if values[name] != model.model_fields[name].get_default(call_default_factory=True):
            cause = condition.partition("=")[0]
            refuse_written(name, mark(name), mark(cause), why=f"{owner} ignores `{name}` where {_spelled(condition)}.")


def refuse_written(name: str, mark: Mark | None, since: Mark | None, *, why: str) -> None:
    """Refuse an idle option, unless it was written in an earlier layer than the setting that makes it idle.

    Args:
        mark: the place of the option; None: it was not written. since: the place of the setting that makes it idle.

    Raises: RecipeError.
    """
    if mark is None or mark.layer == WRITTEN_DOWN or (since is not None and mark.layer < since.layer):
        return
    raise RecipeError(where=mark.where, what=why, remedy=f"Leave out `{name}`, or change what makes it idle.")


def _spelled(condition: str) -> str:
    """A condition as a recipe writes it: "`model` is set", or "`decay: constant`"."""
    name, compares, value = condition.partition("=")
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    return f"`{name}: {value}`" if compares else f"`{name}` is set"


def idle_keys(section: Section, node: Node | None, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The idle keys of a section and of the sections in it: the place of each, and its default.

    Raises: RecipeError, for an idle key that `refuse_idle` refuses.
    """

    def mark(name: str) -> Mark | None:
        found = node.get(name) if node is not None else None
        return found.mark if found is not None else None

    values = {name: getattr(section, name) for name in type(section).model_fields}
    idle = ignored(type(section).IGNORES_IF, values)
    refuse_idle(idle, values, type(section), mark, owner=f"`{'.'.join(place)}`" if place else "a recipe")
    for name, value in values.items():
        here, own = (*place, name), node.get(name) if node is not None else None
        if name in idle:
            yield here, type(section).model_fields[name].get_default(call_default_factory=True)
        elif isinstance(value, Section) and not slot_at(here):
            yield from idle_keys(value, own, here)
        elif here in (("agents",), ("policies",)):
            for key, inner in value.items():
                yield from idle_keys(inner, own.get(key) if own is not None else None, (*here, key))
