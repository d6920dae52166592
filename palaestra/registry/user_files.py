"""Finds and imports the user's files that a recipe names, and makes them importable in other processes."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palaestra.errors import ContractError

LOG = logging.getLogger("palaestra.registry.user_files")
OF_FILE = re.compile(r"\.py:\w+$")  # `path/to/file.py:function`
LONGEST_PATH = 1000  # characters; a longer text names no file
_FILES: dict[str, str] = {}  # name of a module → its file


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a file as Python runs a script: its imports are searched for in its own folder first."""

    def exec_module(self, module: Any) -> None:
        """Run the file.

        Raises: ContractError, if it imports a module from its folder, and another user's file has already imported a
            module of the same name from another folder.
        """
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
                what=f"it imports `{twice[0]}` from its folder, but another file of the run has already imported "
                f"{others[twice[0]].__file__}, and a process can hold only one module of this name.",
                remedy="Rename one of the two files.",
            )


def _namesakes(folder: str) -> list[str]:
    """Imported modules from the folders of other user's files for which `folder` has a file of the same name."""
    others = {os.path.dirname(file) for file in _FILES.values()} - {folder}
    if not others:
        return []
    # Modules with dotted names are found through their packages, not through the folder.
    loaded = {name: _file_of(module) for name, module in sys.modules.copy().items() if "." not in name}
    beside = {name for name, file in loaded.items() if os.path.dirname(file) in others} - _FILES.keys()
    return [name for name in beside if os.path.exists(os.path.join(folder, f"{name}.py"))]


def neighbors(file: str) -> list[str]:
    """The imported files in the folder of a user's file, sorted, without that file."""
    loaded = {_file_of(module) for name, module in sys.modules.copy().items() if name not in _FILES}
    return sorted(other for other in loaded if other != file and os.path.dirname(other) == os.path.dirname(file))


def _file_of(module: Any) -> str:
    # Not `module.__file__`: some libraries import more when a module is asked for an attribute that it lacks.
    return getattr(module, "__dict__", {}).get("__file__") or ""


class _Finder(importlib.abc.MetaPathFinder):
    """Imports the modules of `_FILES` by name. Unpickling needs this."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in _FILES:
            return None
        return importlib.util.spec_from_file_location(name, _FILES[name], loader=_Loader(name, _FILES[name]))


_FINDER = _Finder()


def user_files() -> dict[str, str]:
    """The user's files that parts were loaded from: module name → path. Other processes need them for `know_files`."""
    return dict(_FILES)


def know_files(files: Mapping[str, str]) -> None:
    """Make the user's files of another process importable here, so that their objects can be unpickled.

    Other files in their folders become importable too. Installed modules of the same name go first.

    Args:
        files: module name → path, from `user_files`.
    """
    _FILES.update(files)
    folders = dict.fromkeys(os.path.dirname(file) for file in files.values())
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def locate(path: Path, folders: Sequence[str]) -> dict[str, str]:
    """Find a file in the first of these folders that has it.

    Returns: `file`, its absolute path, and `folder`, where it was found; `folder` is empty for an absolute path.
    Raises: FileNotFoundError.
    """
    for folder in folders:
        if os.path.isfile(folder / path):  # false, too, for a name that is too long
            found_from = "" if path.is_absolute() else str(Path(folder).resolve())
            return {"file": str((folder / path).resolve()), "folder": found_from}
    looked = dict.fromkeys(place for folder in folders if (place := os.path.relpath(folder)) != ".")
    raise FileNotFoundError(f"no file {path}" + (f" in {', '.join(looked)} or the working folder" if looked else ""))


def located(value: Any, folders: Sequence[str], *, functions: bool = False) -> tuple[Any, tuple[str, ...]]:
    """Replace the texts in a value that name files, or functions of files, by absolute paths.

    Args:
        value: a text, or lists and mappings of texts. Keys of mappings count too.
        folders: the folders in which a relative path is searched for, in this order.
        functions: True: only `path/to/file.py:function` names a file.

    Returns: the new value, and the folders in which files were found. A text that names no file stays as it is.
    """
    used: dict[str, None] = {}

    def absolute(text: str) -> str:
        file, attribute = text, ""
        if OF_FILE.search(text):
            file, _, attribute = text.rpartition(":")
        elif functions:
            return text
        for folder in folders if len(file) < LONGEST_PATH and not os.path.isabs(file) else ():
            if os.path.exists(os.path.join(folder, file)):
                start = str(Path(folder).resolve())
                used[start] = None
                return os.path.join(start, file) + (f":{attribute}" if attribute else "")
        return text

    def replaced(inner: Any) -> Any:
        if isinstance(inner, Mapping):
            return {replaced(key): replaced(one) for key, one in inner.items()}
        if isinstance(inner, list | tuple):
            return type(inner)(replaced(one) for one in inner)
        return absolute(inner) if isinstance(inner, str) else inner

    return replaced(value), tuple(used)


@contextmanager
def same_folder(file: str) -> Iterator[None]:
    """A context in which a user's file or module is imported. At its end the working folder is as it was, since the
    run's folder and other paths of a recipe are relative to it. The log says so once for each file."""
    folder = _working_folder()
    try:
        yield
    finally:
        if folder is not None and _working_folder() != folder:
            with suppress(OSError):  # it was deleted
                os.chdir(folder)
                LOG.warning("%s changed the working folder. The change does not reach the rest of the process.", file)


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


@functools.cache
def module_of_file(path: Path) -> Any:
    """Import a file. The name of its module depends only on its path, so it is the same in every process."""
    digest, stem = hashlib.sha256(str(path).encode()).hexdigest()[:16], re.sub(r"\W", "_", path.stem)
    name = f"palaestra_user_{digest}_{stem}"
    know_files({name: str(path)})
    return importlib.import_module(name)
