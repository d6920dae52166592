"""Show what a tool returns as a text of bounded length. A large result is cut before it is copied."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pydantic

from palaestra.boundary.cleaning import Counts, clean_text


class Shown(NamedTuple):
    """A text, and whether it was cut."""

    text: str
    truncated: bool


def render(value: Any, most: int, counts: Counts | None = None) -> Shown:
    """A result as text of at most `most` characters. A text that was cut ends with a note about the rest.

    Args:
        counts: counts the characters that no file can hold, which are replaced (`palaestra.boundary.cleaning`).
    """
    if isinstance(value, str):
        return _cut(value[: most + 1], most, len(value), "characters", counts)
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(memoryview(value)[: 4 * (most + 1)])  # a character takes at most four bytes
        text = head.decode("utf-8", errors="replace")
        kept = len(text[:most].encode("utf-8")) if "\ufffd" not in text else most
        return _cut(text, most, most + max(len(value) - kept, 0) if len(text) > most else len(text), "bytes", counts)
    if value is None:
        return Shown("done", False)
    try:
        return _json(value, most, counts)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return render(str(_plain(value)), most, counts)


def first_line(error: BaseException, most: int = 200, counts: Counts | None = None) -> str:
    """An error on one line: its type and the beginning of its message. `counts`: as of `render`."""
    try:
        lines = str(error).strip().splitlines()
    except KeyboardInterrupt:
        raise
    except BaseException:  # as in `palaestra.errors.described`
        lines = []
    text = ": ".join([type(error).__name__, *lines[:1]])
    return clean_text(text if len(text) <= most else f"{text[:most]}…", counts)


def _cut(head: str, most: int, size: int, unit: str, counts: Counts | None) -> Shown:
    if size <= most:
        return Shown(clean_text(head, counts), False)
    return Shown(f"{clean_text(head[:most], counts)}… {size - most:,} more {unit}", True)


def _json(value: Any, most: int, counts: Counts | None) -> Shown:
    """A value as JSON. The encoder stops once the text is long enough."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=_plain).iterencode(value):
        pieces.append(piece if len(piece) <= most else piece[: most + 1])
        size += len(piece)
        if size > most:
            return Shown(f"{clean_text(''.join(pieces)[:most], counts)}… and more", True)
    return Shown(clean_text("".join(pieces), counts), False)


def _plain(value: Any) -> Any:
    """A value that JSON has, in place of one that it lacks."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", errors="replace")
    if callable(getattr(value, "tolist", None)):  # arrays and scalars of numpy and torch
        return value.tolist()
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"a number of about {int(value.bit_length() * math.log10(2)):,} digits"
    try:
        return str(value)
    except Exception:
        return type(value).__name__
