"""Checksums of a checkpoint: of its files, and of what the logs of the run held when it was written.

They show whether a disk, a copy or a hand has changed a file since. They do not show who has changed it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

SUMS = "checksums.json"
_PIECE = 1 << 20  # bytes that are read at once


def write_sums(place: Path, logs: Iterable[Path] = ()) -> None:
    """Write the checksums of all files in the folder `place`, and of the logs as they are now.

    Later lines of a log change nothing: its checksum is of the bytes that it has now.
    """
    files = {file.name: _sum(file) for file in _files(place)}
    sizes = {log.name: log.stat().st_size if log.exists() else 0 for log in logs}
    held = {log.name: {"bytes": sizes[log.name], "sha256": _sum(log, sizes[log.name])} for log in logs}
    (place / SUMS).write_text(json.dumps({"files": files, "logs": held}, sort_keys=True, indent=1))


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


def log_fault(place: Path, folder: Path) -> str | None:
    """What is wrong with the logs of the run in `folder`, compared with what they held at this checkpoint.

    None, if each still begins with these bytes, or if the checkpoint has no checksums that can be read.
    """
    written = _read(place)
    for name, held in (written or {"logs": {}})["logs"].items():
        log = folder / name
        if not held["bytes"]:  # the run had not written the log yet, and may have been stopped before it did
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


def _read(place: Path) -> dict[str, Any] | None:
    """The content of the file of checksums; None, if it is missing or damaged."""
    try:
        written = json.loads((place / SUMS).read_text(encoding="utf-8"))
        files, logs = written["files"], written["logs"]
        whole = all(isinstance(value, str) for value in files.values()) and all(
            isinstance(held["bytes"], int) and isinstance(held["sha256"], str) for held in logs.values()
        )
        return {"files": dict(files), "logs": dict(logs)} if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
