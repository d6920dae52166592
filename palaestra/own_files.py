"""Files of one's own: finding the file that a recipe names, importing it, and telling other processes of it."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.errors import ContractError

_FILES: dict[str, str] = {}  # name of a module → its file


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a file as Python runs a script: what it imports is looked for in its own folder first."""

    def exec_module(self, module: Any) -> None:
        """Raises: ContractError, if a neighbor has the name of one that another file has imported from its folder."""
        folder = os.path.dirname(self.path)
        others = {name: sys.modules.pop(name) for name in _namesakes(folder)}
        sys.path.insert(0, folder)
        try:
            super().exec_module(module)
        finally:
            sys.path.remove(folder)
            twice = sorted(others.keys() & sys.modules.keys())
            sys.modules.update(others)
        if twice:
            raise ContractError(
                where=self.path,
                what=f"it imports `{twice[0]}` from its folder, and another file has imported "
                f"{others[twice[0]].__file__} under that name.",
                remedy="Rename one of the two: one process holds one module of a name.",
            )


def _namesakes(folder: str) -> list[str]:
    """Modules from folders of other files of one's own that `folder` has, too."""
    others = {os.path.dirname(file) for file in _FILES.values()} - {folder}
    loaded = {name: _file_of(module) for name, module in list(sys.modules.items()) if name not in _FILES}
    beside = {name for name, file in loaded.items() if os.path.dirname(file) in others}
    return [name for name in beside if os.path.exists(os.path.join(folder, f"{name}.py"))]


def neighbors(file: str) -> list[str]:
    """The files beside a file of one's own that have been imported, sorted."""
    loaded = {_file_of(module) for name, module in list(sys.modules.items()) if name not in _FILES}
    return sorted(other for other in loaded if other != file and os.path.dirname(other) == os.path.dirname(file))


def _file_of(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


class _Finder(importlib.abc.MetaPathFinder):
    """Imports modules of `_FILES` by name, as unpickling their objects does."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in _FILES:
            return None
        return importlib.util.spec_from_file_location(name, _FILES[name], loader=_Loader(name, _FILES[name]))


_FINDER = _Finder()


def user_files() -> dict[str, str]:
    """Files of one's own that parts were loaded from: name of the module → path. Another process needs them."""
    return dict(_FILES)


def know_files(files: Mapping[str, str]) -> None:
    """Make modules importable that another process has loaded from files, so that their objects can be unpickled.

    So are their neighbors, after all that is installed.
    """
    _FILES.update(files)
    folders = dict.fromkeys(os.path.dirname(file) for file in files.values())
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def locate(path: Path, folders: Sequence[str]) -> dict[str, str]:
    """The file that a path means, and the folder that it was found from. Raises: FileNotFoundError."""
    for folder in folders:
        if (folder / path).is_file():
            found_from = "" if path.is_absolute() else str(Path(folder).resolve())
            return {"file": str((folder / path).resolve()), "folder": found_from}
    looked = dict.fromkeys(place for folder in folders if (place := os.path.relpath(folder)) != ".")
    raise FileNotFoundError(f"no file {path}" + (f" in {', '.join(looked)} or the working folder" if looked else ""))


@functools.cache
def module_of_file(path: Path) -> Any:
    """The module of a file. Its name depends on the path alone, so that it is the same in every process."""
    digest, stem = hashlib.sha256(str(path).encode()).hexdigest()[:16], re.sub(r"\W", "_", path.stem)
    name = f"palaestra_user_{digest}_{stem}"
    know_files({name: str(path)})
    return importlib.import_module(name)
