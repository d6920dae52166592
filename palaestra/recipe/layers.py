"""Merges the layers of a recipe, and applies dotted overrides to it.

A recipe is a tree of `Node`s. At the places of `PART_SLOTS` a part is kept as `{name, options}`, or as a list of
those, in whichever form it was written. Everything else is kept as it was written.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic.fields import FieldInfo

from palaestra import registry
from palaestra.errors import RecipeError, shortened
from palaestra.recipe.origins import Mark, Node, node_of
from palaestra.registry import Section
from palaestra.registry.bound import BoundPart
from palaestra.training.settings import PART_SLOTS, RunSettings

Place = tuple[str, ...]  # ("policies", "main", "policy")
OPTIONS: Place = ("",)  # the place for merging options: it is never a part's place, so options are merged as plain keys
OWN_PART = re.compile(r"[^:]*:\w+")  # `path/to/file.py:attribute`; its dots do not separate keys


# ---- places ----------------------------------------------------------------------------------
def slot_at(path: Place) -> str | None:
    """The slot of the part at this place, or None."""
    named = len(path) > 1 and path[0] in ("agents", "policies")
    return PART_SLOTS.get(".".join((path[0], "*", *path[2:]) if named else path)) if path else None


def section_at(path: Place) -> type[Section] | None:
    """The schema of the section at this place."""
    model: type[Section] | None = RunSettings
    for key in _schema_keys(path):
        if model is None or key not in model.model_fields:
            return None
        model = _section_in(model.model_fields[key].annotation)
    return model


def field_at(path: Place) -> FieldInfo | None:
    """The schema of the key at this place."""
    section = section_at(path[:-1])
    return section.model_fields.get(path[-1]) if section else None


def _schema_keys(path: Place) -> list[str]:
    named = bool(path) and path[0] in ("agents", "policies")
    return [path[0], *path[2:]] if named else list(path)


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, typing.get_args(annotation))), None)


def _takes_list(path: Place) -> bool:
    def listed(annotation: Any) -> bool:
        return typing.get_origin(annotation) is list or any(map(listed, typing.get_args(annotation)))

    field = field_at(path)
    return field is not None and listed(field.annotation)


def default_mark(path: Place, value: Any) -> Mark:
    """The mark of a default, which stands in no file."""
    return Mark("default", f"{'.'.join(path)}: {value}")


def _default_parts(path: Place) -> Node | None:
    field = field_at(path)
    default = field.default if field is not None else None
    uses = [use for use in (default if isinstance(default, list) else [default]) if isinstance(use, BoundPart)]
    if not uses:
        return None
    mark = default_mark(path, ", ".join(use.name for use in uses))
    parts = [node_of({"name": use.name, "options": use.options}, mark) for use in uses]
    return Node(parts, mark) if isinstance(default, list) else parts[0]


# ---- layers -----------------------------------------------------------------------------------------------
def merge(former: Node | None, latter: Node, path: Place = ()) -> Node:
    """Lay `latter` over `former`. Sections are merged key by key; lists and scalars are replaced.

    If both name the same part, the options of `former` that `latter` does not give are kept. Otherwise the part of
    `latter` replaces that of `former`.
    """
    if slot_at(path):
        return _merge_parts(former or _default_parts(path), latter, path)
    if not isinstance(latter.value, dict):
        return latter
    old = former.value if former is not None and isinstance(former.value, dict) else {}
    new = {key: merge(old.get(key), node, (*path, key)) for key, node in latter.value.items()}
    return Node({**old, **new}, latter.mark)


def _merge_parts(former: Node | None, latter: Node, path: Place) -> Node:
    if latter.value is None:
        return latter
    if not _takes_list(path):
        return _merge_part(former, _as_part(latter, path))
    if isinstance(latter.value, list):
        return Node([_as_part(item, path) for item in latter.value], latter.mark)
    old = parts_of(former)
    return Node([_merge_part(old[0] if len(old) == 1 else None, _as_part(latter, path))], latter.mark)


def _merge_part(former: Node | None, latter: Node) -> Node:
    if former is None or former.value is None or former.value["name"].value != latter.value["name"].value:
        return latter
    options, name = merge(former.value["options"], latter.value["options"], OPTIONS), latter.value["name"]
    folders = (*name.mark.folders, *former.value["name"].mark.folders)  # the part's file may lie beside either layer
    name = Node(name.value, replace(name.mark, folders=tuple(dict.fromkeys(folders))))
    return Node({"name": name, "options": options}, latter.mark)


def _as_part(written: Node, path: Place) -> Node:
    """A part as `{name, options}`, from `gigpo` or `{gigpo: {gamma: 0.95}}`."""
    name, options = written, Node({}, written.mark)
    if isinstance(written.value, dict) and len(written.value) == 1:
        [(key, options)] = written.value.items()
        name = Node(key, options.mark)
        options = Node({}, options.mark) if options.value is None else options
    if isinstance(name.value, str) and isinstance(options.value, dict):
        return Node({"name": name, "options": options}, written.mark)
    several = ", or a list of those" if _takes_list(path) else ""
    raise RecipeError(
        where=written.mark.where,
        what=f"`{'.'.join(path)}` takes one part, found `{shortened(str(written.plain()))}`.",
        remedy=f"Write `name`, or `{{name: {{option: value}}}}`{several}.",
    )


def parts_of(node: Node | None) -> list[Node]:
    """The parts at one place: none, one or several."""
    if node is None or node.value is None:
        return []
    return list(node.value) if isinstance(node.value, list) else [node]


def parts_at(tree: Node, place: Place) -> list[Node]:
    """The parts at one place as a recipe writes them in a list; if none is written there, the default ones."""
    found = parts_of(tree.get(*place) or _default_parts(place))
    return [Node({part.value["name"].value: part.value["options"]}, part.mark) for part in found]


# ---- overrides --------------------------------------------------------------------------------------------
def override(tree: Node, key: str, value: Node) -> Node:
    """`tree` with the value at a dotted key. The key of an option may leave out its part's name.

    Raises: RecipeError, if the key does not say which of several parts it means.
    """
    path = tuple(key.split("."))
    for end in range(1, len(path)):
        if slot_at(path[:end]):
            place, rest = path[:end], ".".join(path[end:])
            parts = tree.get(*place) or _default_parts(place)
            return _put(tree, place, _override_part(parts, place, rest, value))
    return merge(tree, _nest(path, value))


def _override_part(former: Node | None, place: Place, rest: str, value: Node) -> Node:
    old = parts_of(former)
    position, options = _address(old, place, rest, value)
    if position is None:
        if len(old) > 1:
            raise _which_part(old, place, value)
        return _merge_parts(former, options, place)
    if not (options.value is None or isinstance(options.value, dict)):
        raise RecipeError(
            where=value.mark.where,
            what=f"`{rest}` is a part; it takes options, found `{shortened(str(value.plain()))}`.",
            remedy=f"Write {'.'.join(place)}.{rest}.option=value",
        )
    former_options = old[position].value["options"]
    merged = former_options if options.value is None else merge(former_options, options, OPTIONS)
    part = Node({"name": old[position].value["name"], "options": merged}, old[position].mark)
    changed = [*old[:position], part, *old[position + 1 :]]
    return Node(changed, former.mark) if former is not None and _takes_list(place) else part


def _address(old: Sequence[Node], place: Place, rest: str, value: Node) -> tuple[int | None, Node]:
    """The position of the part that `rest` means, and the options given to it; None, if the part is a new one."""
    for position, part in enumerate(old):
        name = part.value["name"].value
        for address in (name, str(position)):
            if rest == address or rest.startswith(address + "."):
                return position, _nest(tuple(filter(None, rest[len(address) + 1 :].split("."))), value)
    own = OWN_PART.match(rest)
    first = own[0] if own else rest.split(".")[0]
    after = tuple(filter(None, rest[len(first) + 1 :].split(".")))
    names_a_part = own or first in registry.names(slot_at(place) or "")
    if names_a_part and (after or value.value is None or isinstance(value.value, dict)):
        return None, _nest((first, *after), value)
    if len(old) != 1:
        raise _which_part(old, place, value)
    return 0, _nest(tuple(rest.split(".")), value)


def _which_part(old: Sequence[Node], place: Place, value: Node) -> RecipeError:
    there = [part.value["name"].value for part in old]
    key = ".".join(place)
    return RecipeError(
        where=value.mark.where,
        what=f"`{key}` holds {len(there)} parts, so the key must name one of them.",
        options=there,
        remedy=f"Write {key}.name.option=value, or give all parts: '{key}=[name, {{name: {{option: value}}}}]'",
    )


def _nest(path: Place, value: Node) -> Node:
    for key in reversed(path):
        value = Node({key: value}, value.mark)
    return value


def _put(tree: Node | None, path: Place, value: Node) -> Node:
    if not path:
        return value
    old = tree.value if tree is not None and isinstance(tree.value, dict) else {}
    mark = tree.mark if tree is not None else value.mark
    return Node({**old, path[0]: _put(old.get(path[0]), path[1:], value)}, mark)
