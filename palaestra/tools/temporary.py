"""Temporary folders that nobody leaves behind. A process locks the folders that it uses, and the kernel frees the locks
of a process that was killed. The next process removes what has no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

PREFIX = "palaestra-own-"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFolder:
    """A new folder in the place for temporary files. `close` removes it, or the end of its owner, or after a kill the
    next process.

    Args:
        kind: a word that becomes part of the name.
    """

    def __init__(self, kind: str) -> None:
        place = tempfile.gettempdir()
        _sweep_once(place)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=place))
            with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked
                lock = locked(self.path)
                self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())
                return

    def close(self) -> None:
        """Remove the folder and all that is in it. Closing twice does nothing. In a fork, the folder stays."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(folder: Path, lock: int, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def locked(folder: Path) -> int:
    """A descriptor that keeps other processes from removing a folder, until it is closed or this process ends.

    Raises: FileNotFoundError, if the folder was removed before it was locked.
    """
    fd = os.open(folder, FOLDER)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system: nobody can lock it, so nobody removes it
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.stat(folder, follow_symlinks=False).st_ino != os.fstat(fd).st_ino:
            raise FileNotFoundError(folder)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether a folder is mine and no process has locked it. It stays locked inside the `with`."""
    try:
        fd = os.open(folder, FOLDER)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.fstat(fd).st_uid == os.geteuid()
        except OSError:
            free = False
        yield free
    finally:
        os.close(fd)


def sweep(place: str) -> None:
    """Remove the folders of processes that have ended."""
    for folder in Path(place).glob(f"{PREFIX}*"):
        with abandoned(folder) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _sweep_once(place: str) -> None:
    with contextlib.suppress(OSError):
        sweep(place)
