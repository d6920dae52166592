"""Checks a recipe's tree against the schema of `RunSettings`. A fault becomes an error with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pydantic

from palaestra.errors import RecipeError, nearest, shortened
from palaestra.recipe.layers import Place, section_at, slot_at
from palaestra.recipe.origins import Mark, Node
from palaestra.registry import Section
from palaestra.training.settings import RunSettings


def validate(tree: Node) -> RunSettings:
    """The settings that a tree gives.

    Raises: RecipeError, for an unknown or missing key or a value of the wrong kind.
    """
    try:
        settings = RunSettings.model_validate(tree.plain())
    except pydantic.ValidationError as error:
        raise _readable(error.errors()[0], tree) from None
    for group in ("policies", "agents"):
        for name in getattr(settings, group):
            if not re.fullmatch(r"[^.\s=/\\]+", name) or not name.isprintable():
                node = tree.get(group, name)
                raise RecipeError(
                    where=node.mark.where if node else group,
                    what=f"`{name}` cannot be a name in `{group}`: a name has no dot, space, slash, control character "
                    "or `=`, and is not empty.",
                    remedy="Use underscores. The name is a piece of dotted keys in overrides and metrics.",
                )
    return settings


def leaves(section: Section, node: Node | None, place: Place = ()) -> Iterator[tuple[Place, Any, Node | None]]:
    """Every key that holds a value or parts: its place, its value, and its node; None, if nobody wrote it."""
    for name in type(section).model_fields:
        value, here = getattr(section, name), (*place, name)
        own = node.get(name) if node is not None else None
        if slot_at(here):
            yield here, value, own
        elif isinstance(value, Section):
            yield from leaves(value, own, here)
        elif here in (("agents",), ("policies",)):
            for key, inner in value.items():
                yield from leaves(inner, own.get(key) if own is not None else None, (*here, key))
        else:
            yield here, value, own


# ---- messages ---------------------------------------------------------------------------------------------
def _readable(fault: Any, tree: Node) -> RecipeError:
    place, mark = _deepest(tree, fault["loc"])
    kind, keys = fault["type"], _keys(place)
    if kind == "extra_forbidden":
        return _unknown_key(place, mark)
    if kind == "missing":
        key = ".".join(map(str, fault["loc"]))
        return RecipeError(where=mark.where, what=f"the recipe gives no `{key}`.", remedy=f"Set `{key}: …`.")
    if kind in ("model_type", "dict_type"):
        what, remedy = (
            f"`{'.'.join(place)}` is a section, found `{shortened(repr(fault['input']))}`.",
            f"Its keys are: {keys}.",
        )
        return RecipeError(where=mark.where, what=what, remedy=remedy)
    key = ".".join(place)
    return RecipeError(
        where=mark.where,
        what=f"`{key}` cannot be {shortened(repr(fault['input']))}: {_lower(fault['msg'])}.",
        remedy=f"Give `{key}` a value of the right kind.",
    )


def _unknown_key(place: Place, mark: Mark) -> RecipeError:
    section = section_at(place[:-1])
    known = list(section.model_fields) if section is not None else []
    owner = f"`{'.'.join(place[:-1])}`" if len(place) > 1 else "a recipe"
    return RecipeError(
        where=mark.where,
        what=f"{owner} has no key `{place[-1]}`.",
        options=nearest(place[-1], known),
        remedy=f"Its keys are: {', '.join(known)}.",
    )


def _deepest(tree: Node, loc: Sequence[int | str]) -> tuple[Place, Mark]:
    """The place and the mark of the innermost written node that contains the fault."""
    place: list[str] = []
    mark = tree.mark
    for end in range(1, len(loc) + 1):
        node = tree.get(*loc[:end])
        if node is None:
            break
        place.append(str(loc[end - 1]))
        mark = node.mark
    return tuple(place), mark


def _keys(place: Place) -> str:
    section = section_at(place)
    return ", ".join(section.model_fields) if section is not None else "names of your own"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
