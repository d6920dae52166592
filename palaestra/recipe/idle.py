"""Options and settings that do nothing beside the others, as parts and sections declare them.

Where somebody gave one another value than its default, beside what makes it idle or after it, the recipe is refused.
What an earlier layer wrote falls away. `explain` shows none of them.
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
    """Refuse an option that does nothing and that somebody gave another value than its default.

    Args:
        idle: option → the condition that makes it so, as `palaestra.registry.ignored` gives them.
        values: of all options. model: their pydantic schema.
        mark: where an option was written; None: it was not.
        owner: whose options they are, for the message.

    Raises: RecipeError, with the place of the option.
    """
    for name, condition in idle.items():
        if values[name] != model.model_fields[name].get_default(call_default_factory=True):
            cause = condition.partition("=")[0]
            refuse_written(name, mark(name), mark(cause), why=f"{owner} ignores `{name}` where {_spelled(condition)}.")


def refuse_written(name: str, mark: Mark | None, since: Mark | None, *, why: str) -> None:
    """Refuse an idle option, unless it was written in an earlier layer than what makes it idle.

    Args:
        mark: where it was written; None: it was not. since: where that stands which makes it idle.

    Raises: RecipeError.
    """
    if mark is None or mark.layer == WRITTEN_DOWN or (since is not None and mark.layer < since.layer):
        return
    raise RecipeError(where=mark.where, what=why, remedy=f"Leave out `{name}`, or change what makes it idle.")


def _spelled(condition: str) -> str:
    """`model` is set, or `decay: constant`, as a recipe writes it."""
    name, compares, value = condition.partition("=")
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    return f"`{name}: {value}`" if compares else f"`{name}` is set"


def idle_keys(section: Section, node: Node | None, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The keys of sections that do nothing: the place of each, and its default.

    Raises: RecipeError, for one that somebody wrote.
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
