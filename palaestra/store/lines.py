"""Files of JSON lines, one object a line, that stay readable if the process is killed in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import PalaestraError, RunFolderError
from palaestra.store.atomic import discard, write_atomic, write_fault
from palaestra.store.json_text import to_line

STEP = "step"
DAMAGED = ".damaged"  # behind the name of a log or a checkpoint that is set aside
# What readers of records raise for values of another form.
OF_OTHER_FORM = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, PalaestraError)


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

        Raises: RunFolderError, naming the line, if an earlier line is not a JSON object; if the file cannot be read.
        """
        return [self._parse(line, number) for number, line in enumerate(self._lines(), start=1)]

    def refuse_unreadable(self) -> None:
        """Refuse a log that is there and cannot be read, such as a folder. Raises: RunFolderError."""
        self._lines()

    def each(self, take: Callable[[Mapping[str, Any]], bool]) -> int:
        """Give each record to `take`. Returns the number of lines that are damaged, or for which `take` is false.

        Another error of `take` is a damaged line, too. A half-written last line is none.
        """
        try:
            lines = self._lines()
        except RunFolderError:
            self._set_aside()
            return 1
        return sum(not self._is_usable(line, take) for line in lines)

    def truncate(self, step: int) -> None:
        """Remove the records after iteration `step` and a half-written last line. Other lines keep their bytes.

        Raises: RunFolderError, if a line is damaged, unless only later lines follow it.
        """
        lines = self._lines()
        while lines and self._is_later(lines[-1], step):
            lines.pop()
        self._rewrite([line for number, line in enumerate(lines, start=1) if self._step(line, number) <= step])

    def _step(self, line: bytes, number: int) -> int:
        """The iteration of a line. Raises: RunFolderError, if the line is damaged."""
        step = self._parse(line, number).get(STEP, 0)
        if not isinstance(step, int):
            raise damaged(self.path, number, f"`{STEP}` is no whole number")
        return step

    def _is_later(self, line: bytes, step: int) -> bool:
        """Whether a line is after iteration `step`, or damaged."""
        try:
            return self._step(line, 0) > step
        except RunFolderError:
            return True

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove the records for which `wanted` is false and a half-written last line. Other lines keep their bytes."""
        lines = self._lines()
        self._rewrite([line for number, line in enumerate(lines, start=1) if wanted(self._parse(line, number))])

    def salvage(self, step: int, usable: Callable[[Mapping[str, Any]], bool]) -> str:
        """As `truncate`, but what cannot be used is left out. The file as it was is then kept as `NAME.damaged`.

        Args:
            usable: whether a record that is a JSON object can be used.

        Returns: what is left out, as in `2 of its lines cannot be used`; empty, if nothing is.
        """
        try:
            lines = self._lines()
        except RunFolderError:
            self._set_aside()
            return "it cannot be read"
        good = [
            line for line in lines if self._is_usable(line, lambda one: isinstance(one.get(STEP), int) and usable(one))
        ]
        if len(good) < len(lines):
            self._set_aside()
        self._rewrite([line for line in good if self._step(line, 0) <= step])
        bad = len(lines) - len(good)
        return f"{bad} of its lines cannot be used" if bad else ""

    def _is_usable(self, line: bytes, usable: Callable[[Mapping[str, Any]], bool]) -> bool:
        try:
            return usable(self._parse(line, 0))
        except OF_OTHER_FORM:
            return False

    def _set_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}{DAMAGED}")
        discard(aside)
        self.path.rename(aside)

    def _lines(self) -> list[bytes]:
        """The complete lines. Raises: RunFolderError, if the file is there and cannot be read."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunFolderError(
                where=str(self.path),
                what=f"it cannot be read: {error.strerror}.",
                remedy="Copy the file back from where it is whole.",
            ) from error
        return content.split(b"\n")[:-1]  # after the last newline there is nothing or half a line

    def _rewrite(self, lines: list[bytes]) -> None:
        after = b"".join(line + b"\n" for line in lines)
        if after != (self.path.read_bytes() if self.path.exists() else b""):
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
