"""Finds and reads recipe files: by path, or by name among the recipes that come with Palaestra."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from palaestra.errors import RecipeError, UnknownName, nearest, shortened
from palaestra.recipe.origins import LARGEST_FILE, Mark, Node, node_of, read_yaml
from palaestra.registry.source_search import PACKAGE

Source = str | Path | Mapping[str, Any]
FOLDER = "recipes"
COMPLETE = "recipe.yaml"  # the name of a folder means this file in it
CHAT = "chat"  # a layer that is computed, and no file (palaestra.recipe.chat)
PLAYED = "run.yaml"  # a system's recipe for `palaestra run`, which trains nothing
NO_RECIPES = ("system.yaml", "golden.yaml")  # files of a system's folder that are not recipes


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a command line into files and overrides (`key=value`), each in their order.

    >>> split_arguments(["gigpo/method.yaml", "rollout.group=16", "setups/rooms-tiny.yaml"])
    (['gigpo/method.yaml', 'setups/rooms-tiny.yaml'], ['rollout.group=16'])
    """
    files = [text for text in arguments if "=" not in text or os.path.isfile(text)]
    return files, [text for text in arguments if text not in files]


def recipes_folder() -> Path | None:
    """The folder of the recipes that belong to no system: in the package, or beside it. None, if there is none."""
    return next((folder / FOLDER for folder in (PACKAGE, PACKAGE.parent) if (folder / FOLDER).is_dir()), None)


def packaged() -> dict[str, Path]:
    """The recipes that come with Palaestra: name → file.

    The recipes of a system are named after its folder, such as `gigpo/method.yaml`. Other names are paths below
    `recipes/`, such as `setups/rooms-tiny.yaml`. They are looked up once in a process.
    """
    return dict(_packaged(recipes_folder(), PACKAGE / "systems"))


@cache
def _packaged(root: Path | None, systems: Path) -> Mapping[str, Path]:
    found = sorted(root.rglob("*.yaml")) if root is not None else []
    known = {path.relative_to(root).as_posix(): path for path in found if root is not None}
    own = [path for path in sorted(systems.glob("*/*.yaml")) if path.name not in NO_RECIPES]
    return known | {f"{path.parent.name}/{path.name}": path for path in own}


@cache
def _names(root: Path | None, systems: Path) -> Mapping[Path, str]:
    return {path: name for name, path in _packaged(root, systems).items()}


def read_layers(source: Source) -> list[Node]:
    """The trees of one source, from left to right: first those of the recipes that its `extends` names, then its own.

    Raises: UnknownName, if a file does not exist; it gives the nearest names. RecipeError, if a file cannot be read or
        extends itself.
    """
    if isinstance(source, Mapping):
        return [node_of(source, Mark("argument"), texts=True)]
    return _layers(Path(source), Path(), ())


def _layers(source: Path, folder: Path, above: tuple[Path, ...]) -> list[Node]:
    """The layers of a file.

    Args:
        folder: a relative `source` starts here. above: the files that extend this one.
    """
    if source.as_posix() == CHAT and not any(os.path.isfile(folder / one) for one in (CHAT, f"{CHAT}/{COMPLETE}")):
        return [Node(CHAT, Mark(CHAT))]
    path, shown = _find(source, folder)
    if path in above:
        chain = " → ".join(other.name for other in (*above, path))
        raise RecipeError(where=shown, what=f"it extends itself: {chain}.", remedy="Leave one of them out.")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        tree = read_yaml(text, source=shown, folder=str(path.parent.resolve()))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(where=shown, what=f"it cannot be read: {error}.", remedy="Give a YAML file.") from None
    if not isinstance(tree.value, dict) or "extends" not in tree.value:
        return [tree]
    named = tree.value["extends"]
    names = named.value if isinstance(named.value, list) else [named]
    if not all(isinstance(name.value, str) for name in names):
        raise RecipeError(
            where=named.mark.where,
            what=f"`extends` takes names of recipes, found `{named.plain()}`.",
            remedy="Write `extends: [setups/rooms-tiny.yaml, method.yaml]`.",
        )
    own = Node({key: node for key, node in tree.value.items() if key != "extends"}, tree.mark)
    return [*(n for name in names for n in _layers(Path(name.value), path.parent, (*above, path))), own]


def is_recipe(text: str) -> bool:
    """Whether the text names a recipe, or a folder with a `recipe.yaml`."""
    try:
        return bool(_find(Path(text)))
    except UnknownName:
        return False


def _find(path: Path, folder: Path = Path()) -> tuple[Path, str]:
    """The file of a source, and its name in messages.

    A path from `folder` comes first: a file, or a folder with a `recipe.yaml`. Otherwise it is a recipe that comes with
    Palaestra, such as `gigpo`, the recipe of the system `gigpo`.
    """
    known = packaged()
    for place in (folder / path, folder / path / COMPLETE):
        if os.path.isfile(place):  # false, too, for a name that is too long
            relative, own = os.path.relpath(place), _names(recipes_folder(), PACKAGE / "systems").get(place.resolve())
            return place, own or (place.as_posix() if relative.startswith("..") else Path(relative).as_posix())
    name = path.as_posix().removeprefix(f"{FOLDER}/")
    for candidate in (name, f"{name}/{COMPLETE}"):
        if candidate in known:
            return known[candidate], candidate
    siblings = [other.as_posix() for other in path.parent.glob("*.yaml")] if os.path.isdir(path.parent) else []
    names = {other.removesuffix(".yaml"): other for other in [*known, *siblings]}
    if "/" not in name:
        names |= {other.partition("/")[0]: other.partition("/")[0] for other in known if other.endswith(f"/{COMPLETE}")}
    moved = [other for other in known if path.stem in (other.removesuffix("/method.yaml"), Path(other).stem)]
    if path.stem == Path(COMPLETE).stem:  # the name of every system's file says nothing
        moved = [path.name] if os.path.isfile(path.name) else []
    raise UnknownName(
        where=shortened(path.as_posix()),
        what=f"this folder has no {COMPLETE}." if os.path.isdir(path) else "no recipe file has this path or name.",
        options=_inside(path) or moved or [names[close] for close in nearest(name.removesuffix(".yaml"), names)],
        remedy="Give a path, the name of a system, or a name such as quickstart.yaml or gigpo/method.yaml "
        "(`palaestra methods` lists the systems).",
    )


def _inside(folder: Path) -> list[str]:
    """The recipe files in a folder; empty, if the path is not a folder."""
    return [place.as_posix() for place in sorted(folder.glob("*.yaml"))[:12]] if os.path.isdir(folder) else []
