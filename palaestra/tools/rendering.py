"""Results of tools as text: short, with what is left out said, whatever a tool returns.

Knows texts, bytes and JSON. Knows nothing of tools. What is large is cut before it is copied.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pydantic


class Shown(NamedTuple):
    """A text and whether it is all."""

    text: str
    truncated: bool


def render(value: Any, most: int) -> Shown:
    """A result as text of at most `most` characters, and what says how much more there was."""
    if isinstance(value, str):
        return _cut(value[: most + 1], most, len(value), "characters")
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(memoryview(value)[: 4 * (most + 1)])  # a character has at most four bytes
        text = head.decode("utf-8", errors="replace")
        kept = len(text[:most].encode("utf-8")) if "\ufffd" not in text else most
        return _cut(text, most, most + max(len(value) - kept, 0) if len(text) > most else len(text), "bytes")
    if value is None:
        return Shown("done", False)
    try:
        return _json(value, most)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return render(str(_plain(value)), most)


def first_line(error: BaseException, most: int = 200) -> str:
    """What was raised, in a line: its kind and the beginning of its message."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    text = ": ".join([type(error).__name__, *lines[:1]])
    return _clean(text if len(text) <= most else f"{text[:most]}…")


def _cut(head: str, most: int, size: int, unit: str) -> Shown:
    if size <= most:
        return Shown(_clean(head), False)
    return Shown(f"{_clean(head[:most])}… {size - most:,} more {unit}", True)


def _clean(text: str) -> str:
    """Without lone surrogates, which no file and no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="replace").decode("utf-8")
    return text


def _json(value: Any, most: int) -> Shown:
    """As much of the JSON as is shown; the rest of a large value is never written."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=_plain).iterencode(value):
        pieces.append(piece if len(piece) <= most else piece[: most + 1])
        size += len(piece)
        if size > most:
            return Shown(f"{_clean(''.join(pieces)[:most])}… and more", True)
    return Shown(_clean("".join(pieces)), False)


def _plain(value: Any) -> Any:
    """Something that JSON knows, for what it does not know."""
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
    if callable(getattr(value, "tolist", None)):  # arrays and their numbers
        return value.tolist()
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"a number of about {int(value.bit_length() * math.log10(2)):,} digits"
    try:
        return str(value)
    except Exception:
        return type(value).__name__
