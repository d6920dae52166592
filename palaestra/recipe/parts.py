"""Finds the parts of a recipe in the registry, checks their options, fills in the defaults and binds the parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pydantic

from palaestra import registry
from palaestra.errors import MissingExtra
from palaestra.recipe.idle import refuse_idle
from palaestra.recipe.layers import Place, default_mark, parts_of, slot_at
from palaestra.recipe.origins import Mark, Node
from palaestra.registry import Files, Part, Section
from palaestra.registry.bound import BoundPart
from palaestra.registry.user_files import located


@dataclass(frozen=True, slots=True)
class Entry:
    """One resolved value and where it was written.

    Attributes:
        folders: for parts in a user's files, and options that name files, the folders in which these files were found.
    """

    value: Any
    mark: Mark
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePart:
    """A part that the recipe uses.

    Attributes:
        path: its place in the recipe, such as `policies.main.policy`.
        name: as the recipe writes it. key: path and name; an override addresses its options by this key.
        part: its entry in the registry.
        options: its checked options with their places, defaults filled in, without the idle ones.
        mark: where the part was written.
    """

    path: str
    name: str
    key: str
    part: Part
    options: Mapping[str, Entry]
    mark: Mark

    @property
    def values(self) -> dict[str, Any]:
        """The options without their places."""
        return {name: row.value for name, row in self.options.items()}

    def bound(self, written: BoundPart, *, strict: bool) -> BoundPart:
        """The part with its options, for training.

        In a strict recipe `singleton` is "error", unless the recipe sets it: a trajectory without peers is refused.
        """
        options = self.values
        for name, files in _naming_files(self.part).items():
            if name in options:
                options[name] = located(options[name], self.options[name].folders, functions=files.functions)[0]
        if strict and self.part.slot == "advantage" and "singleton" in options and "singleton" not in written.options:
            options["singleton"] = "error"
        return written.bound(self.part, options)

    @property
    def owner(self) -> str | None:
        """The policy or role that the part belongs to; None, if it belongs to the whole run."""
        pieces = self.path.split(".")
        return pieces[1] if pieces[0] in ("policies", "agents") else None


def used_parts(
    place: Place, uses: list[BoundPart], node: Node | None, beside: Mapping[str, Entry] = MappingProxyType({})
) -> Iterator[RecipePart]:
    """The parts at one place of the recipe.

    Args:
        uses: the parts as the settings hold them. node: the same parts in the tree; None: nobody wrote them.
        beside: keys of the section around the parts that set an option, such as `load`, which is a policy's `model`.

    Raises: UnknownName, RecipeError, MissingExtra, each with the place of the part or option.
    """
    names = [use.name for use in uses]
    path = ".".join(place)
    written: list[Node | None] = [*parts_of(node)] or [None] * len(uses)
    for position, (use, own) in enumerate(zip(uses, written, strict=True)):
        key = f"{path}.{use.name}" if names.count(use.name) == 1 else f"{path}.{position}"
        mark = default_mark(place, use.name) if own is None else own.value["name"].mark
        part = _find(slot_at(place) or "", use.name, mark)
        part.check_installed(where=mark.where)
        options = _options(part, use, own.get("options") if own is not None else None, key, mark, beside)
        yield RecipePart(path=path, name=use.name, key=key, part=part, options=options, mark=mark)


def _find(slot: str, name: str, mark: Mark) -> Part:
    try:
        return registry.part(slot, name, where=mark.where, folders=mark.folders)
    except MissingExtra as error:
        raise MissingExtra(where=mark.where, what=error.what, options=error.options, remedy=error.remedy) from None


def _options(
    part: Part, use: BoundPart, written: Node | None, key: str, mark: Mark, beside: Mapping[str, Entry]
) -> dict[str, Entry]:
    def place(name: str) -> Mark | None:
        node = written.get(name) if written is not None else None
        return node.mark if node is not None else beside[name].mark if name in beside else None

    def default(name: str, value: Any) -> Mark:
        return Mark("default", f"{key}.{name}: {value}")

    fault = _first_fault(part, use)
    checked = part.check(use.options, where=((fault and place(fault)) or mark).where)
    idle = part.ignored_with(checked | {name: row.value for name, row in beside.items()})
    refuse_idle(idle, checked, part.options, place, owner=f"`{use.name}`")

    files = _naming_files(part)

    def entry(name: str, value: Any) -> Entry:
        mark = place(name) or default(name, value)
        found = located(value, mark.folders, functions=files[name].functions)[1] if name in files else ()
        return Entry(value, mark, found)

    return {name: entry(name, value) for name, value in checked.items() if name not in idle}


def _naming_files(part: Part) -> dict[str, Files]:
    """The options whose texts name files."""
    marked = {name: field.metadata for name, field in part.options.model_fields.items()}
    return {name: note for name, notes in marked.items() for note in notes if isinstance(note, Files)}


def _first_fault(part: Part, use: BoundPart) -> str | None:
    """The option that `Part.check` will refuse; the message then names the line of this option."""
    try:
        part.options.model_validate(use.options)
    except pydantic.ValidationError as error:
        where = error.errors()[0]["loc"]
        return str(where[0]) if where else None
    return None


def with_bound(section: Any, bound: Mapping[Place, Any], place: Place = ()) -> Any:
    """The settings with these bound parts at their places."""
    changed: dict[str, Any] = {}
    for name in type(section).model_fields:
        value, here = getattr(section, name), (*place, name)
        if here in bound:
            changed[name] = bound[here]
        elif isinstance(value, Section) and not isinstance(value, BoundPart):
            changed[name] = with_bound(value, bound, here)
        elif here in (("agents",), ("policies",)):
            changed[name] = {key: with_bound(inner, bound, (*here, key)) for key, inner in value.items()}
    return section.model_copy(update=changed)
