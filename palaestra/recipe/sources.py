"""Sources: recipe files by path, or by name among those that come with Palaestra.

Knows folders. Knows nothing of what a recipe says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.catalogue.places import CHECKOUT, PACKAGE
from palaestra.errors import RecipeError, UnknownName, nearest
from palaestra.recipe.origins import Mark, Node, node_of, read_yaml

Source = str | Path | Mapping[str, Any]
FOLDER = "recipes"


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and overrides of a command line, each in their order: an override is `key=value`.

    >>> split_arguments(["methods/gigpo.yaml", "rollout.group=16", "setups/rooms-tiny.yaml"])
    (['methods/gigpo.yaml', 'setups/rooms-tiny.yaml'], ['rollout.group=16'])
    """
    files = [text for text in arguments if "=" not in text or os.path.isfile(text)]
    return files, [text for text in arguments if text not in files]


def packaged() -> dict[str, Path]:
    """The recipes that come with Palaestra: `methods/gigpo.yaml` → where it lies."""
    root = next((folder / FOLDER for folder in (PACKAGE, CHECKOUT) if (folder / FOLDER).is_dir()), None)
    found = sorted(root.rglob("*.yaml")) if root is not None else []
    return {path.relative_to(root).as_posix(): path for path in found if root is not None}


def read_source(source: Source) -> Node:
    """The tree of one source.

    Raises: UnknownName, if there is no such file, with the nearest names; RecipeError, if it cannot be read.
    """
    if isinstance(source, Mapping):
        return node_of(source, Mark("argument"), texts=True)
    path, shown = _find(Path(source))
    try:
        return read_yaml(path.read_text(encoding="utf-8"), source=shown)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(where=shown, what=f"it cannot be read: {error}.", remedy="Give a YAML file.") from None


def _find(path: Path) -> tuple[Path, str]:
    """Where a source lies, and how messages call it."""
    if path.is_file():
        relative = os.path.relpath(path)
        return path, path.as_posix() if relative.startswith("..") else Path(relative).as_posix()
    known = packaged()
    name = path.as_posix().removeprefix(f"{FOLDER}/")
    if name in known:
        return known[name], f"{FOLDER}/{name}"
    siblings = [other.as_posix() for other in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    names = {other.removesuffix(".yaml"): other for other in [*known, *siblings]}
    raise UnknownName(
        where=path.as_posix(),
        what="it is a folder; a recipe is a YAML file." if path.is_dir() else "no recipe file is called so.",
        options=[names[close] for close in nearest(name.removesuffix(".yaml"), names)],
        remedy=f"Give a path, or a name below the packaged folder `{FOLDER}/`, such as quickstart.yaml.",
    )
