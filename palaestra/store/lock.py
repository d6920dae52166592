"""The lock of a run folder, so that only one process at a time trains into it. Reading needs no lock.

The system releases the lock when its process ends in any way, so a killed run leaves nothing that must be removed.
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
PATIENCE = 0.5  # seconds of waiting for a run that is about to end
TIDYING = 20.0  # the same for a process that tidies the folder up before it reads; it has written no pid
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # file systems without locks, where runs are not kept apart

# A `flock` belongs to the open file, which forked children share. A worker that did not close it would keep the lock of
# its parent. Processes that are started by exec do not inherit it, because Python opens files with O_CLOEXEC.
_held: set[int] = set()


def _let_go_in_child() -> None:
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def writing(folder: str | os.PathLike[str], *, make: bool) -> Iterator[None]:
    """Hold the lock of a folder, so that no other process and no other call can train into it.

    Args:
        make: make a missing folder with its parents. False: a missing folder is entered without a lock.

    Raises: RunFolderError, if another process trains into the folder (with its pid), or if the place cannot be used.
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
    """Try to hold the lock, so that no run begins in the folder. Gives whether it is held.

    It is not held if a run is in progress, even one of this process, or if the folder cannot be written.
    """
    try:
        handle = _acquire(folder, trains=False)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        _release(folder, handle)


def is_written(folder: Path) -> bool:
    """Whether a process trains into the folder. False also if there is no folder, or if that cannot be known."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        _lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _patiently(folder: Path) -> int:
    """Take the lock, and wait a moment for it. Raises: BlockingIOError, if it is still taken; OSError."""
    began = time.monotonic()
    trained = began  # when a run was last not known to hold the lock
    while True:
        try:
            return _acquire(folder, trains=True)
        except BlockingIOError:
            now = time.monotonic()
            trained = trained if _holder(folder) else now
            if now - trained >= PATIENCE or now - began >= TIDYING:
                raise
            time.sleep(PATIENCE / 10)


def _acquire(folder: Path, *, trains: bool) -> int:
    """Take the lock and return the open file. It has this process's pid if the process `trains`, and else nothing.

    Raises: BlockingIOError, if the lock is taken; OSError.
    """
    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # a link may lead to any file
        _held.add(handle)
        try:
            _lock(handle)
            if _is_current(folder, handle):
                with suppress(OSError):  # on a full disk the lock holds, but the file lacks the pid
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()}\n".encode() if trains else b"", 0)
                return handle
        except BaseException:
            _close(handle)
            raise
        _close(handle)  # its last holder removed the file after it was opened here


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_current(folder: Path, handle: int) -> bool:
    """Whether the open file is still the one at the path, which others would open."""
    try:
        return os.path.samestat(os.stat(folder / LOCK), os.fstat(handle))
    except FileNotFoundError:
        return False


def _release(folder: Path, handle: int) -> None:
    if handle not in _held:
        return  # a forked child does not hold its parent's lock
    with suppress(OSError):
        (folder / LOCK).unlink(missing_ok=True)  # removed before the release, so that it is not another holder's file
    _close(handle)


def _close(handle: int) -> None:
    _held.discard(handle)
    os.close(handle)


def _holder(folder: Path) -> str:
    """The pid of the process that trains into the folder; empty, if none is known."""
    try:
        return (folder / LOCK).read_text().strip()
    except (OSError, ValueError):
        return ""


def _taken(folder: Path) -> RunFolderError:
    pid = _holder(folder)
    return RunFolderError(
        where=f"run={folder}",
        what=f"another run writes into this folder{f' (process {pid})' if pid else ''}.",
        remedy="Do one of these:\n"
        "  • wait until it ends, or stop it and continue with `--resume`, or\n"
        "  • give this run another folder with `run=<folder>`.",
    )
