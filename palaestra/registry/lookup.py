"""Finds the function or class of a part by the part's slot and name.

Names are found in the source text. So listing the parts imports neither torch nor any other folder of the package, and
loading one part imports only its module.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from palaestra.errors import ContractError, MissingExtra, PalaestraError, RecipeError, UnknownName, nearest
from palaestra.registry.declaration import Part
from palaestra.registry.options import taking_fields
from palaestra.registry.signatures import file_of_module, read_part, reads_only
from palaestra.registry.slots import MAY_BE_OBJECTS, SLOTS
from palaestra.registry.source_search import add, known_parts
from palaestra.registry.trust import refuse_inside
from palaestra.registry.user_files import locate, module_of_file, same_folder, user_files
from palaestra.registry.user_objects import MODULE

WRITTEN = "Write `module:attribute`, or `path/to/file.py:attribute` from the recipe's folder or the working folder."


@functools.cache
def index() -> dict[str, dict[str, str]]:
    """Slot → name → `module:attribute`, for the parts of this package and of other installed packages.

    Another package adds parts by entry points of the group `palaestra.parts`, each with the name `slot.name`.

    Raises: ContractError, if two parts of a slot share a name, or a slot does not exist.
    """
    found: dict[str, dict[str, str]] = {slot: {} for slot in SLOTS}
    for slot, parts in known_parts().items():
        if slot not in SLOTS:
            raise ContractError(
                where=", ".join(parts.values()), what=f"no slot is called `{slot}`.", options=nearest(slot, SLOTS)
            )
        found[slot].update(parts)
    for entry in metadata.entry_points(group="palaestra.parts"):
        slot, _, name = entry.name.partition(".")
        add(found, slot, name, entry.value)
    return found


def names(slot: str) -> list[str]:
    """All known names of a slot, sorted."""
    return sorted(index()[slot])


def part(slot: str, name: str, *, where: str = "", folders: Sequence[str] = (".",)) -> Part:
    """The part of this name.

    Args:
        slot: a key of `SLOTS`.
        name: a registered name, or `module:attribute`, or `path/to/file.py:attribute` for a part of the user's own.
        where: the place in a recipe, for the message of an error.
        folders: the folders in which a relative path is searched for, in this order.

    Raises: UnknownName, with the nearest names.
    """
    where = where or f"{slot}: {name}"
    target = index()[slot].get(name)
    if target is None and reads_only() and _must_be_read(name):
        return _read(slot, name, where=where, folders=folders)
    if target is None and ":" not in name:
        others = [other for other, parts in index().items() if name in parts]
        if others:
            what = f"`{name}` is a part of slot `{'` and `'.join(others)}`, not of `{slot}`."
            raise UnknownName(where=where, what=what, remedy="Move it there.")
        raise UnknownName(
            where=where,
            what=f"no {slot} is called `{name}`.",
            options=nearest(name, names(slot)),
            remedy=f"`palaestra methods --slot {slot}` lists all; a part of your own is `path/to/file.py:function`.",
        )
    found, own = _load(target or name, where=where, folders=folders)
    declared = vars(found).get("part") if hasattr(found, "__dict__") else None  # not one that the class inherits
    if declared is None and slot not in MAY_BE_OBJECTS and not callable(found):
        raise UnknownName(
            where=where, what=f"`{name}` must be a function or a class, and it is of type {type(found).__name__}."
        )
    if declared is None:
        bare = Part(slot=slot, name=name, target=taking_fields(found) if inspect.isfunction(found) else found)
        return replace(bare, file=own.get("file", ""), folder=own.get("folder", ""))
    if declared.slot != slot:
        raise UnknownName(where=where, what=f"`{name}` is a part of slot `{declared.slot}`, not of `{slot}`.")
    return replace(declared, **own) if own else declared  # type: ignore[no-any-return]


def _must_be_read(name: str) -> bool:
    """Whether a name means code of the user that this process has not imported yet."""
    place = name.rpartition(":")[0]
    known = place == MODULE or place in sys.modules or place.startswith("palaestra.")
    return place.endswith(".py") or bool(place and not known)


def _read(slot: str, name: str, *, where: str, folders: Sequence[str]) -> Part:
    """A part of the user as the text of its file describes it, without importing it. Raises: as `part`."""
    place, _, attribute = name.rpartition(":")
    own: dict[str, str] = {}
    try:
        if place.endswith(".py"):
            own = locate(Path(place), folders)
        file = Path(own["file"]) if own else file_of_module(place)
        if file is None:
            raise ModuleNotFoundError(f"no module {place}, or it is no Python text")
        stub, declares = read_part(name, file, attribute)
    except (OSError, ImportError, AttributeError, SyntaxError, ValueError, RecursionError) as error:
        what = f"`{name}` cannot be loaded: {error}."
        raise UnknownName(where=where, what=what, remedy=WRITTEN) from error
    declared = declares.pop("slot", slot)
    if declared != slot:
        raise UnknownName(where=where, what=f"`{name}` is a part of slot `{declared}`, not of `{slot}`.")
    part = Part(slot=slot, name=name, target=stub, file=own.get("file", ""), folder=own.get("folder", ""))
    return replace(part, **declares)


def _load(target: str, *, where: str, folders: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """The object behind a name; and `file` and `folder`, if it comes from a file of the user."""
    place, _, attribute = target.rpartition(":")
    own: dict[str, str] = {}
    if not attribute.isidentifier():
        raise UnknownName(where=where, what=f"`{target}` cannot be loaded: `{attribute}` is no name.", remedy=WRITTEN)
    try:
        if place.endswith(".py"):
            own = locate(Path(place), folders)
            if own["file"] not in user_files().values():  # others run already
                refuse_inside(Path(own["file"]), where=where)
        with same_folder(place):
            module = module_of_file(Path(own["file"])) if own else importlib.import_module(place)
        if not hasattr(module, attribute):
            raise UnknownName(
                where=where,
                what=f"`{target}` cannot be loaded: {place} has no `{attribute}`.",
                options=nearest(attribute, (name for name in vars(module) if not name.startswith("_"))),
                remedy=WRITTEN,
            )
        return getattr(module, attribute), own
    except (FileNotFoundError, ModuleNotFoundError, AttributeError) as error:
        if place == MODULE:
            what = f"`{attribute}` was an object of another program, which this one does not have."
            remedy = f"Put it in a file, and give it as `path/to/file.py:{attribute}`, or import it from a module."
            raise UnknownName(where=where, what=what, remedy=remedy) from error
        if isinstance(error, ModuleNotFoundError) and place.startswith("palaestra."):
            what = f"the package `{error.name}` is not installed."
            raise MissingExtra(where=where, what=what, remedy="Install it with: pip install palaestra") from error
        raise UnknownName(
            where=where,
            what=f"`{target}` cannot be loaded: {error}.",
            remedy=WRITTEN,
        ) from error
    except PalaestraError:
        raise
    except Exception as error:  # a file of the user may raise anything
        if place.startswith("palaestra."):
            raise
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own.get("file")
        ]
        line = f", in line {lines[-1]}" if lines else ""  # a fault of syntax says its line itself
        raise RecipeError(
            where=where,
            what=f"`{target}` fails when it is imported{line}: {type(error).__name__}: {error}.",
            remedy="Import the file in Python to see the whole traceback.",
        ) from error
