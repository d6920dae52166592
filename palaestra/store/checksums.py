"""Checksums of a checkpoint: of its files, and of what the logs of the run held when it was written.

They show whether a disk, a copy or a hand has changed a file since. They do not show who has changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

SUMS = "checksums.json"
_PIECE = 1 << 20  # bytes that are read at once


@dataclass(slots=True)
class GrowingSum:
    """The checksum of a log that only grows. Each call of `now` reads only what was added since the call before."""

    file: Path
    _digest: Any = field(default_factory=hashlib.sha256)
    _read: int = 0

    def now(self) -> dict[str, Any]:
        """Size and checksum of the log. A missing log is an empty one."""
        if self.file.exists():
            with self.file.open("rb") as opened:
                opened.seek(self._read)
                for piece in _pieces(opened, None):
                    self._digest.update(piece)
                    self._read += len(piece)
        return {"bytes": self._read, "sha256": self._digest.hexdigest()}


def write_sums(place: Path, logs: Iterable[Path] = (), known: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write the checksums of all files in the folder `place`, and of the logs as they are now.

    Later lines of a log change nothing: its checksum is of the bytes that it has now.

    Args:
        known: further logs by name, as `GrowingSum.now` describes them.
    """
    files = {file.name: _sum(file) for file in _files(place)}
    sizes = {log.name: log.stat().st_size if log.exists() else 0 for log in logs}
    held = {log.name: {"bytes": sizes[log.name], "sha256": _sum(log, sizes[log.name])} for log in logs}
    content = {"files": files, "logs": {**held, **(known or {})}}
    (place / SUMS).write_text(json.dumps({**content, "sum": _of_itself(content)}, sort_keys=True, indent=1))


def file_fault(place: Path) -> str | None:
    """What is wrong with the files of a checkpoint, as in `main.safetensors does not match its checksum`.

    None, if nothing is, or if the checkpoint has no checksums, as those of earlier versions.
    """
    if not (place / SUMS).exists():
        return None
    written = _read(place)
    if written is None:
        return f"{SUMS} cannot be read"
    there = {file.name for file in _files(place)}
    for name, expected in written["files"].items():
        if name not in there:
            return f"{name} is missing"
        if _sum(place / name) != expected:
            return f"{name} does not match its checksum"
    further = sorted(there - written["files"].keys())
    return f"{further[0]} has no checksum" if further else None


def log_fault(place: Path, folder: Path, *names: str) -> str | None:
    """What is wrong with these logs of the run in `folder`, compared with what they held at this checkpoint.

    None, if each still begins with these bytes, or if the checkpoint has no checksum of it that can be read.
    """
    written = _read(place) or {"logs": {}}
    for name in names:
        held, log = written["logs"].get(name), folder / name
        if held is None or not held["bytes"]:  # the run may have been stopped before it wrote the first line
            continue
        if not log.exists():
            return f"{name} is missing"
        if (size := log.stat().st_size) < held["bytes"]:
            return f"{name} is cut: it has {size:,} of the {held['bytes']:,} bytes that it had at this checkpoint"
        if _sum(log, held["bytes"]) != held["sha256"]:
            return f"{name} was changed: its first {held['bytes']:,} bytes do not match their checksum"
    return None


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.iterdir() if file.is_file() and file.name != SUMS)


def cut_logs(place: Path, folder: Path, *names: str) -> dict[str, bytes]:
    """Cut these logs of the run in `folder` to what they held at this checkpoint, as far as it has their checksums.

    Returns: what came after it, by the names of the logs.
    """
    written, rest = _read(place) or {"logs": {}}, {}
    for name in names:
        held, log = written["logs"].get(name), folder / name
        if held is not None and log.exists() and log.stat().st_size > held["bytes"]:
            with log.open("rb") as opened:
                opened.seek(held["bytes"])
                rest[name] = opened.read()
            os.truncate(log, held["bytes"])
    return rest


def _read(place: Path) -> dict[str, Any] | None:
    """The content of the file of checksums; None, if it is missing or damaged."""
    try:
        written = json.loads((place / SUMS).read_text(encoding="utf-8"))
        files, logs = written["files"], written["logs"]
        whole = all(isinstance(value, str) for value in files.values()) and all(
            isinstance(held["bytes"], int) and isinstance(held["sha256"], str) for held in logs.values()
        )
        if written.keys() != {"files", "logs"}:  # those of earlier versions have no checksum of themselves
            whole = whole and written["sum"] == _of_itself({"files": files, "logs": logs})
        return {"files": dict(files), "logs": dict(logs)} if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _of_itself(content: Mapping[str, Any]) -> str:
    """The checksum of the checksums."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sum(file: Path, size: int | None = None) -> str:
    """SHA-256 of the first `size` bytes of a file; None: of all. "" if it cannot be read. A missing file has none."""
    digest = hashlib.sha256()
    if size == 0:
        return digest.hexdigest()
    try:
        with file.open("rb") as opened:
            for piece in _pieces(opened, size):
                digest.update(piece)
    except OSError:  # such as a bad sector
        return ""
    return digest.hexdigest()


def _pieces(opened: BinaryIO, size: int | None) -> Iterable[bytes]:
    rest = size
    while piece := opened.read(_PIECE if rest is None else min(_PIECE, rest)):
        yield piece
        rest = None if rest is None else rest - len(piece)
