"""A resolved recipe: settings, parts and the origin of every value.

The tree of the layers is checked against the schema (`validation.py`), its parts are found (`parts.py`), and what
cannot run is refused (`feasibility.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pydantic_core import to_jsonable_python

from palaestra.errors import RecipeError, UnknownName, nearest
from palaestra.recipe.feasibility import check
from palaestra.recipe.idle import idle_keys
from palaestra.recipe.layers import Place, default_mark, merge, override, slot_at
from palaestra.recipe.origins import HERE, WRITTEN_DOWN, Mark, Node, folders_in, node_of, read_override
from palaestra.recipe.parts import Entry, RecipePart, used_parts, with_bound
from palaestra.recipe.running import unread_estimators, unread_keys
from palaestra.recipe.validation import leaves, validate
from palaestra.registry.bound import BoundPart
from palaestra.store.folder import OTHER_FORM, is_recipe
from palaestra.training.settings import RunSettings, default_role

WIDEST = 44  # columns of the table of `explain`; a longer cell pushes its neighbors


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A resolved and checked recipe.

    Attributes:
        settings: the settings of the run, with bound parts.
        parts: every part that runs, with its options.
        rows: every resolved key with its value and place, in the order of the schema.
        tree: the recipe as it was written.
        baselines: name → the layers that the baseline changes (`palaestra run`).
    """

    settings: RunSettings
    parts: Sequence[RecipePart]
    rows: Mapping[str, Entry]
    tree: Node = field(repr=False)
    baselines: Mapping[str, Sequence[Node]] = field(default_factory=dict, repr=False)

    def with_overrides(self, overrides: Sequence[str]) -> Recipe:
        """The same recipe with further overrides. All checks run again.

        Raises: as `load`.
        """
        return resolve(overridden(self.tree, overrides))

    def baseline(self, name: str) -> Recipe:
        """This recipe with the changes of a baseline.

        Raises: as `load`.
        """
        return resolve(reduce(merge, self.baselines[name], self.tree))

    def origin(self, path: str) -> str:
        """Where a value was written: `default`, `recipes/gigpo.yaml:11` or `command line`.

        Args:
            path: a key as `explain` prints it. The key of an option may leave out its part's name (`advantage.gamma`).

        Raises: UnknownName, with the nearest keys.
        """
        return self._row(path).mark.origin

    def where(self, path: str) -> str:
        """Origin and text, as an error shows a place: `recipes/gigpo.yaml:11  advantage: gigpo`."""
        return self._row(path).mark.where

    def explain(self) -> str:
        """A table of every resolved key, default ones included, with its value and its origin."""
        cells = [("key", "value", "origin")]
        cells += [(key, _written(row.value), row.mark.origin) for key, row in self.rows.items()]
        keys, values = (min(max(len(row[column]) for row in cells), WIDEST) for column in (0, 1))
        return "\n".join(f"{key:<{keys}}  {value:<{values}}  {origin}" for key, value, origin in cells)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Key → `{"value": …, "origin": …}`, for the file `recipe.json` of the run folder.

        If a value names parts in a user's files, `folders` lists the folders of these files.
        """
        return {
            key: {"value": to_jsonable_python(row.value), "origin": row.mark.origin}
            | ({"folders": list(row.folders)} if row.folders else {})
            for key, row in self.rows.items()
        }

    @classmethod
    def from_json(cls, entries: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """The recipe that `to_json` wrote. All checks run again; defaults keep the values that they had then.

        Raises: RecipeError or UnknownName, if this version has not all of its keys and parts, or if `to_json` did not
            write it.
        """
        if not is_recipe(entries):
            raise RecipeError(
                where="recipe.json",
                what=f"{OTHER_FORM}.",
                remedy="Name a folder that `palaestra train` has written.",
            )
        tree = Node({}, Mark("recipe.json"))
        for key in sorted(entries):  # a part before its options
            value, origin = entries[key]["value"], entries[key]["origin"]
            node_of(value, Mark(origin, key))  # refuses a value that is too deep to be written as text
            folders = (*entries[key].get("folders", ()), HERE)
            mark = Mark(origin, f"{key}: {_written(value)}", folders=folders, layer=WRITTEN_DOWN)
            tree = override(tree, key, node_of(value, mark))
        return resolve(tree)

    def _row(self, path: str) -> Entry:
        if path in self.rows:
            return self.rows[path]
        for used in self.parts:
            if path.startswith(used.path + ".") and path[len(used.path) + 1 :] in used.options:
                return used.options[path[len(used.path) + 1 :]]
        raise UnknownName(
            where=f"recipe: {path}",
            what="the recipe has no such key.",
            options=nearest(path, self.rows),
            remedy="`palaestra explain` lists all.",
        )


def overridden(tree: Node, overrides: Sequence[str]) -> Node:
    """A tree with overrides such as `rollout.group=16`. Raises: RecipeError."""
    folders = tuple(dict.fromkeys(folders_in(tree))) if overrides else ()
    return reduce(lambda former, text: override(former, *read_override(text, folders=folders)), overrides, tree)


def resolve(tree: Node) -> Recipe:
    """The recipe of a tree. Raises: as `palaestra.recipe.load`."""
    written = validate(tree)
    rows: dict[str, Entry] = {}
    parts: list[RecipePart] = []
    bound: dict[Place, Any] = dict(idle_keys(written, tree))
    for place, value, node in leaves(written, tree):
        key = ".".join(place)
        if place in bound:
            continue
        names = _names(value) if slot_at(place) else value
        rows[key] = Entry(names, node.mark if node is not None else default_mark(place, _written(names)))
        if slot_at(place) and value is not None:
            uses = value if isinstance(value, list) else [value]
            here = list(used_parts(place, uses, node, _in_place_of_options(place, tree)))
            folders = tuple(dict.fromkeys(used.part.folder for used in here if used.part.folder))
            rows[key] = replace(rows[key], folders=folders)
            rows |= {f"{used.key}.{name}": row for used in here for name, row in used.options.items()}
            parts += here
            made = [used.bound(use, strict=written.strict) for used, use in zip(here, uses, strict=True)]
            bound[place] = made if isinstance(value, list) else made[0]
    for place, default in (*unread_keys(parts, tree, list(rows)), *unread_estimators(parts, tree)):
        here = [used for used in parts if used.path == ".".join(place)]
        for key in (".".join(place), *(f"{used.key}.{name}" for used in here for name in used.options)):
            rows.pop(key, None)
        if here:
            parts = [used for used in parts if used not in here]
        if not slot_at(place) or isinstance(bound.get(place), list):
            bound[place] = [] if slot_at(place) else default
    settings: RunSettings = with_bound(written, bound)
    settings._other_role = default_role()
    check(settings, parts, rows, tree)
    return Recipe(settings=settings, parts=tuple(parts), rows=rows, tree=tree)


def _in_place_of_options(place: Place, tree: Node) -> dict[str, Entry]:
    """The keys of a policy's section that set one of the policy's options: `load` sets `model`."""
    load = tree.get(*place[:-1], "load") if slot_at(place) == "policy" else None
    return {} if load is None or load.value is None else {"model": Entry(load.value, load.mark)}


def _names(value: BoundPart | list[BoundPart] | None) -> Any:
    """The names of the parts at one place: a single name, or a list of none or several."""
    if isinstance(value, list):
        return value[0].name if len(value) == 1 else [use.name for use in value]
    return value.name if value is not None else None


def _written(value: Any) -> str:
    """A value as a recipe writes it."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value), ensure_ascii=False)
