"""Write files and folders atomically: after a crash, or on a full disk, the previous version is still intact.

A file is written beside its target, flushed to the disk, and renamed. It appears at the moment of the rename.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from palaestra.errors import PalaestraError, RunFolderError

Content = bytes | str | Callable[[BinaryIO], object]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WHOLE = "whole"  # the file in a folder of `set_aside` that says that everything is there
_BACK = "back"  # its name from the moment on from which `put_back` must be finished
_NEARLY_NOTHING = 64 * 1024  # with fewer free bytes, a write that failed without a reason means a full disk


def write_atomic(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file so that readers see either the old version or the new one, never a part.

    Args:
        path: the file. Its folder is made if it is missing.
        content: bytes, text (written as UTF-8), or a function that writes to the open binary file that it gets.

    Raises: RunFolderError, if the disk is full (with the bytes needed and free) or the place cannot be written to. The
        previous version is then intact, and nothing is left beside it. Other exceptions of the function pass.
    """
    target = Path(path)
    temporary = _beside(target, f"{os.getpid()}.tmp")
    with _cleaned_up(target, temporary, needed=_size_of(content)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            _pour(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _sync(target.parent)


@contextmanager
def folder_atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder to write into. When the block ends without an exception, it becomes `path` in one step.

    An earlier folder at `path` is replaced. If the block raises, nothing changes.
    Raises: RunFolderError, as in `write_atomic`.
    """
    target = Path(path)
    temporary = _beside(target, f"{os.getpid()}.tmp")
    with _cleaned_up(target, temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for inside in [temporary, *temporary.rglob("*")]:
            _sync(inside)
        _swap(temporary, target)
        _sync(target.parent)


def recover(folder: Path) -> None:
    """Remove what killed writers have left in `folder`, and restore what they were about to replace."""
    for leftover in folder.glob(".*.tmp"):
        _remove(leftover)
    for old in folder.glob(".*.old"):
        original = folder / old.name[1 : -len(".old")]
        if original.exists():
            _remove(old)
        else:
            os.replace(old, original)


def set_aside(folder: Path, names: Sequence[str], place: str) -> None:
    """Move these files and folders of `folder` into its new folder `place`, so that `put_back` can undo it.

    A kill at any moment loses nothing: `put_back` finishes or undoes it.
    """
    aside = folder / place
    aside.mkdir()
    for name in names:
        if os.path.lexists(folder / name):
            os.replace(folder / name, aside / name)
    _sync(aside)
    (aside / _WHOLE).touch()
    _sync(aside)
    _sync(folder)


def is_aside(folder: Path, place: str) -> bool:
    """Whether `set_aside` has moved everything, so that what is in `folder` now is newer."""
    return (folder / place / _WHOLE).exists()


def put_back(folder: Path, names: Sequence[str], place: str) -> None:
    """Undo `set_aside`: remove these files of `folder`, and move those of `place` back."""
    aside = folder / place
    if not aside.is_dir():
        return
    if is_aside(folder, place):
        os.replace(aside / _WHOLE, aside / _BACK)
        _sync(aside)
    if (aside / _BACK).exists():  # otherwise what is in the folder was not moved yet, or is back already
        for name in names:
            discard(folder / name)
        _sync(folder)
        (aside / _BACK).unlink()
        _sync(aside)
    for name in names:
        if os.path.lexists(aside / name):
            os.replace(aside / name, folder / name)
    _sync(folder)
    discard(aside)


def discard(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists. Raises: OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_fault(path: Path, error: BaseException, *, needed: str = "more", full: bool = False) -> RunFolderError:
    """The error for a write that failed: a full disk, with the bytes needed and free, or the system's reason."""
    if full or is_full(error):
        return RunFolderError(
            where=str(path),
            what="the disk is full: it has no room for another file, whatever its size."
            if _holds_all_its_files(path)
            else f"the disk is full: {needed} bytes were needed and {_free(path):,} are free.",
            remedy="Nothing was lost. The previous version is intact.\n"
            "Free some space and continue with `--resume`, or use another disk with `run=<folder>`.",
        )
    reason = getattr(error, "strerror", None) or str(error)
    return RunFolderError(
        where=str(path),
        what=f"it cannot be written: {reason}.",
        remedy="Check the path and its permissions, or write to another place; for a run, `run=<folder>` names it.",
    )


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if "No space left on device" in str(error) or "Disk quota exceeded" in str(error):
            return True  # errors of libraries in other languages have only the text
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _cleaned_up(target: Path, temporary: Path, *, needed: str = "") -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        full = is_full(error) or (isinstance(error, RuntimeError) and _free(temporary) < _NEARLY_NOTHING)
        needed = needed or _written(temporary)
        _remove(temporary)
        if isinstance(error, PalaestraError) or not (full or isinstance(error, OSError)):
            raise
        raise write_fault(target, error, needed=needed, full=full) from error


def _swap(temporary: Path, target: Path) -> None:
    # A folder cannot be renamed over another. After a kill between the two renames, `recover` restores the old one.
    old = _beside(target, "old")
    _remove(old)
    if target.exists():
        os.replace(target, old)
    os.replace(temporary, target)
    _remove(old)


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{ending}")


def _pour(content: Content, file: BinaryIO) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)


def _size_of(content: Content) -> str:
    if callable(content):
        return ""
    return f"{len(content.encode() if isinstance(content, str) else content):,}"


def _written(path: Path) -> str:
    files = [path] if path.is_file() else [inside for inside in path.rglob("*") if inside.is_file()]
    return f"more than {sum(file.stat().st_size for file in files):,}" if files else "more"


def _free(path: Path) -> int:
    return shutil.disk_usage(_existing(path)).free


def _holds_all_its_files(path: Path) -> bool:
    """Whether the file system can have no further file, since it has a number of them (inodes) and all are used."""
    system = os.statvfs(_existing(path))
    return system.f_files > 0 and system.f_favail == 0


def _existing(path: Path) -> Path:
    return next(place for place in [path, *path.absolute().parents] if place.exists())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder; the rename is done all the same
            raise
    finally:
        os.close(handle)
