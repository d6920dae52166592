"""Files of JSON lines, one object a line, that stay readable if the process is killed in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import RunFolderError
from palaestra.store.atomic import write_atomic, write_fault
from palaestra.store.json_text import to_line

STEP = "step"


@dataclass(frozen=True, slots=True)
class JsonLines:
    """One file of JSON lines. The object keeps no file open, so it may be copied, pickled and shared."""

    path: Path

    def append(self, record: Mapping[str, Any], *, sort: bool = True) -> None:
        """Add one line.

        The system gets the line at once, so a killed process loses at most the line that it was writing. `sync` also
        protects against a power cut. A half line that a kill has left is removed first.

        Args:
            sort: sort the keys, so that equal records are equal bytes. False keeps their order.

        Raises: RunFolderError, if the disk is full. The file then ends with its last whole line.
        """
        line = to_line(record, sort=sort).encode()
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
            try:
                _append(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise write_fault(self.path, error, needed=f"{len(line):,}") from error

    def sync(self) -> None:
        """Wait until every line is on the disk. Call it before a checkpoint becomes visible."""
        if self.path.exists():
            handle = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        """All records. A half-written last line is left out, and a missing file has no records.

        Raises: RunFolderError, naming the line, if an earlier line is not a JSON object.
        """
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]  # after the last newline there is nothing or half a line
        return [self._parse(line, number) for number, line in enumerate(lines, start=1)]

    def truncate(self, step: int) -> None:
        """Remove the records after iteration `step` and a half-written last line. Other lines keep their bytes.

        Raises: RunFolderError, if a line is damaged, unless only later lines follow it.
        """
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")[:-1]
        while lines and self._is_later(lines[-1], step):
            lines.pop()
        kept = [line for number, line in enumerate(lines, start=1) if self._parse(line, number).get(STEP, 0) <= step]
        self._rewrite(kept)

    def _is_later(self, line: bytes, step: int) -> bool:
        """Whether a line is after iteration `step`, or damaged."""
        try:
            return bool(self._parse(line, 0).get(STEP, 0) > step)
        except (RunFolderError, TypeError):
            return True

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove the records for which `wanted` is false and a half-written last line. Other lines keep their bytes."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")[:-1]
        self._rewrite([line for number, line in enumerate(lines, start=1) if wanted(self._parse(line, number))])

    def _rewrite(self, lines: list[bytes]) -> None:
        after = b"".join(line + b"\n" for line in lines)
        if after != self.path.read_bytes():
            write_atomic(self.path, after)

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
            if isinstance(record, dict):
                return record
            fault = "not an object"
        except (ValueError, RecursionError) as error:
            fault = str(error)
        raise damaged(self.path, number, fault)


def damaged(path: Path, number: int, fault: str) -> RunFolderError:
    """The error for a line that cannot be used."""
    return RunFolderError(
        where=f"{path}:{number}",
        what=f"this line is damaged: {fault}.",
        remedy="Copy the file back from where it is whole, remove the line by hand, or start the run again with "
        "`--overwrite`.",
    )


def _append(handle: int, line: bytes) -> None:
    end = _end_of_last_line(handle)
    try:
        written = 0
        while written < len(line):
            written += os.write(handle, line[written:])
    except OSError:
        os.ftruncate(handle, end)
        raise


def _end_of_last_line(handle: int) -> int:
    """Cut off a half line. Returns the size of the file."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return size
    end = os.pread(handle, size, 0).rfind(b"\n") + 1
    os.ftruncate(handle, end)
    return end
