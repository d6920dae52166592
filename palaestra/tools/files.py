"""The work folder of an episode, and the tools that list, read, write and change its files.

No path leaves the folder. Absolute paths and `..` are refused, and no link is ever followed, so a link that appears
between a check and the use of a path does no harm.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from palaestra.errors import PalaestraError
from palaestra.tools.temporary import FOLDER, TemporaryFolder
from palaestra.tools.tool import Tool, ToolError, tool

LISTED = 200


class WorkFolder:
    """The files of one episode, in a temporary folder of the host. ToolError reports what an agent can correct.

    Threads may use it at the same time: each write and replacement happens as a whole.

    Args:
        files: the first files, by relative path.
        max_files, max_kb: most files, and most kilobytes of all files together. Higher: larger work, more disk.
    """

    def __init__(
        self, files: Mapping[str, str | bytes] | None = None, *, max_files: int = 200, max_kb: int = 1024
    ) -> None:
        for name, value in (("max_files", max_files), ("max_kb", max_kb)):
            if value < 1:
                raise PalaestraError(
                    where="WorkFolder", what=f"`{name}` is {value}.", remedy=f"Set `{name}` to 1 or more."
                )
        self._max_files, self._max_bytes = max_files, max_kb * 1024
        self._folder = TemporaryFolder("files")
        self.path = str(self._folder.path)
        self._root = os.open(self.path, FOLDER)
        self._lock = threading.RLock()
        self._count = itertools.count()
        try:
            for path, content in (files or {}).items():
                self.write(path, content)
        except ToolError as fault:
            self.close()
            raise PalaestraError(where="WorkFolder", what=f"a first file cannot be written: {fault}.") from fault

    def read(self, path: str) -> bytes:
        """The content of a regular file. Raises: ToolError."""
        parts = _parts(path)
        with self._parent(parts) as folder:
            try:
                fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                raise ToolError(f"there is no file {path!r}") from None
            except OSError:
                raise ToolError(f"{path!r} is no file that can be read") from None
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise ToolError(f"{path!r} is a folder" if stat.S_ISDIR(status.st_mode) else f"{path!r} is no file")
                if status.st_size > self._max_bytes:
                    raise ToolError(f"{path!r} is too large to be read")
                with os.fdopen(os.dup(fd), "rb") as file:
                    return file.read()
            finally:
                os.close(fd)

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file and the folders it needs. Raises: ToolError, also if the folder would grow too large."""
        parts, data = _parts(path), _encoded(content, "the text") if isinstance(content, str) else bytes(content)
        with self._lock:
            self._write(path, parts, data)

    def replace(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Write what `change` makes of the content of a file. No other write comes between. Raises: ToolError."""
        with self._lock:
            self.write(path, change(self.read(path)))

    def _write(self, path: str, parts: tuple[str, ...], data: bytes) -> None:
        sizes = self.sizes()
        here = "/".join(parts)
        if here not in sizes and len(sizes) >= self._max_files:
            raise ToolError(f"there are {len(sizes)} files already; no more can be made")
        if sum(sizes.values()) - sizes.get(here, 0) + len(data) > self._max_bytes:
            raise ToolError(f"the files together may have {self._max_bytes // 1024} kB; {path!r} does not fit")
        with self._parent(parts, make=True) as folder:
            # Renaming a new file over the old one means that nobody reads half a file and no link is followed.
            fresh = f".{parts[-1][:100]}.{next(self._count)}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            try:
                os.rename(fresh, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(fresh, dir_fd=folder)
                raise ToolError(f"{path!r} is a folder") from None

    def remove(self, path: str) -> None:
        """Remove a file. A missing file and a folder are left as they are. Raises: ToolError, for a path outside."""
        parts = _parts(path)
        with self._lock, contextlib.suppress(ToolError), self._parent(parts) as folder:
            try:
                os.unlink(parts[-1], dir_fd=folder)
            except FileNotFoundError:
                return
            except OSError:
                raise ToolError(f"{path!r} is a folder") from None

    def sizes(self) -> dict[str, int]:
        """Size in bytes of each regular file, in alphabetical order of the paths."""
        with self._lock:
            self._refuse_closed()
            return self._sizes()

    def _sizes(self) -> dict[str, int]:
        found = {}
        for parent, _, names, fd in os.fwalk(".", dir_fd=self._root, follow_symlinks=False):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found[os.path.normpath(os.path.join(parent, name))] = status.st_size
        return dict(sorted(found.items()))

    def contents(self) -> dict[str, bytes]:
        """The content of all files by path, as a sandbox takes them."""
        return {path: self.read(path) for path in self.sizes()}

    def close(self) -> None:
        """Remove the folder. Closing twice does nothing."""
        with self._lock:
            if self._root >= 0:
                os.close(self._root)
                self._root = -1
                self._folder.close()

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self._root < 0:
            raise PalaestraError(where="WorkFolder", what="the folder is closed.", remedy="Make a new WorkFolder.")

    @contextlib.contextmanager
    def _parent(self, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder that a file is in. Each folder is opened in turn, without following a link."""
        self._refuse_closed()
        folder = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                try:
                    inner = os.open(part, FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    raise ToolError(f"there is no folder {part!r}") from None
                except OSError:
                    raise ToolError(f"{part!r} is no folder") from None
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def file_tools(folder: WorkFolder) -> list[Tool]:
    """The tools `list_files`, `read_file`, `write_file` and `replace_in_file` for one folder."""

    @tool
    def list_files() -> str:
        """List all files with their sizes in bytes."""
        sizes = folder.sizes()
        lines = [f"{path} ({size})" for path, size in list(sizes.items())[:LISTED]]
        if len(sizes) > LISTED:
            lines.append(f"… and {len(sizes) - LISTED} more")
        return "\n".join(lines) or "no files"

    @tool
    def read_file(path: str, first: int = 1, last: int = 0) -> str:
        """Read a text file.

        Args:
            path: relative to the work folder.
            first: number of the first line, from 1.
            last: number of the last line; 0 is the end of the file.
        """
        lines = _decoded(folder.read(path), path).splitlines(keepends=True)
        if first < 1 or (last and last < first):
            raise ToolError(f"there are no lines {first} to {last}")
        return "".join(lines[first - 1 : last or None]) or "(empty)"

    @tool
    def write_file(path: str, text: str) -> str:
        """Make a file, or replace all of it.

        Args:
            path: relative to the work folder; folders are made.
            text: the whole content.
        """
        folder.write(path, text)
        return f"wrote {path} ({len(text.splitlines())} lines)"

    @tool
    def replace_in_file(path: str, old: str, new: str) -> str:
        """Replace a piece of a text file that occurs exactly once.

        Args:
            path: relative to the work folder.
            old: the piece, with its spaces and line ends.
            new: what takes its place.
        """
        line = 0

        def changed(content: bytes) -> bytes:
            nonlocal line
            text = _decoded(content, path)
            count = text.count(old) if old else 0
            if count != 1:
                how = "is empty" if not old else "does not occur" if not count else f"occurs {count} times"
                raise ToolError(f"`old` {how} in {path!r}; it must occur exactly once")
            line = text[: text.index(old)].count("\n") + 1
            return _encoded(text.replace(old, new), "`new`")

        folder.replace(path, changed)
        return f"changed {path} at line {line}"

    return [list_files, read_file, write_file, replace_in_file]


def _decoded(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path!r} is no text") from None


def _encoded(text: str, name: str) -> bytes:
    """The text as UTF-8. Raises: ToolError, for half of a character (a lone surrogate), which UTF-8 cannot hold."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ToolError(f"{name} has half of a character, {half!r}, which no file can hold: leave it out") from None


def _parts(path: str) -> tuple[str, ...]:
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ToolError(f"{path!r} is not inside the work folder: give a relative path without `..`")
    if any(len(_encoded(part, "the path")) > 200 for part in pure.parts) or len(pure.parts) > 20:
        raise ToolError(f"the path {path[:40]!r}… is too long")
    return pure.parts
