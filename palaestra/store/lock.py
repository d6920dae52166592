"""The lock of a run folder: one process at a time trains into a folder; reading it needs no lock.

The system drops the lock when its process ends, however it ends, so a killed run leaves nothing that must be removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from palaestra.errors import RunFolderError
from palaestra.store.atomic import write_fault

LOCK = ".lock"
PATIENCE = 0.5  # seconds; who opens a folder to read it holds the lock for an instant
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # file systems without locks: runs there are not kept apart

# `flock` belongs to the open file, which forked children share: without this a worker would keep its parent's lock.
# Processes that are started anew do not inherit it (Python opens files with O_CLOEXEC).
_held: set[int] = set()


def _let_go_in_child() -> None:
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def writing(folder: str | os.PathLike[str], *, make: bool) -> Iterator[None]:
    """While entered, no other process and no other call may train into the folder.

    Args:
        make: make the folder with its parents if it is missing; else a missing folder is entered without a lock.

    Raises: RunFolderError, if another process trains into it, named by its pid; or if the place cannot be used.
    """
    path = Path(folder)
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        handle = _patiently(path) if path.is_dir() else None
    except BlockingIOError:
        raise _taken(path) from None
    except OSError as error:
        raise write_fault(path, error) from error
    try:
        yield
    finally:
        if handle is not None:
            _release(path, handle)


@contextmanager
def unless_written(folder: Path) -> Iterator[bool]:
    """While entered, no run begins in the folder; tells whether that is so.

    It is not where a run is under way, this process's own included, or where the folder cannot be written.
    """
    try:
        handle = _acquire(folder)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        _release(folder, handle)


def _patiently(folder: Path) -> int:
    """Raises: BlockingIOError, if the lock is still taken after a moment; OSError."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _acquire(folder)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(PATIENCE / 10)


def _acquire(folder: Path) -> int:
    """The open lock file, with this process's pid in it. Raises: BlockingIOError, if it is taken; OSError."""
    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(handle)
        try:
            _lock(handle)
            if _is_current(folder, handle):
                with suppress(OSError):  # a full disk: then the lock holds and does not say whose it is
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return handle
        except BaseException:
            _close(handle)
            raise
        _close(handle)  # who held it has removed the file since it was opened here


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_current(folder: Path, handle: int) -> bool:
    """Whether the open file is still the one that others would open."""
    try:
        return os.path.samestat(os.stat(folder / LOCK), os.fstat(handle))
    except FileNotFoundError:
        return False


def _release(folder: Path, handle: int) -> None:
    if handle not in _held:
        return  # a forked child leaves its parent's block
    with suppress(OSError):
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: nobody else can hold the file of this name
    _close(handle)


def _close(handle: int) -> None:
    _held.discard(handle)
    os.close(handle)


def _taken(folder: Path) -> RunFolderError:
    try:
        pid = (folder / LOCK).read_text().strip()
    except OSError:
        pid = ""
    return RunFolderError(
        where=f"run={folder}",
        what=f"another run writes into this folder{f' (process {pid})' if pid else ''}.",
        remedy="Do one of these:\n"
        "  • wait until it ends, or stop it and continue with `--resume`, or\n"
        "  • give this run another folder with `run=<folder>`.",
    )
