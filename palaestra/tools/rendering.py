"""Show what a tool returns as a text of bounded length. A large result is cut before it is copied."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pydantic


class Shown(NamedTuple):
    """A text, and whether it was cut."""

    text: str
    truncated: bool


def render(value: Any, most: int) -> Shown:
    """A result as text of at most `most` characters. A text that was cut ends with a note about the rest."""
    if isinstance(value, str):
        return _cut(value[: most + 1], most, len(value), "characters")
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(memoryview(value)[: 4 * (most + 1)])  # a character takes at most four bytes
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
    """An error on one line: its type and the beginning of its message."""
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
    """The text with lone surrogates replaced, because files and tokenizers refuse them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="replace").decode("utf-8")
    return text


def _json(value: Any, most: int) -> Shown:
    """A value as JSON. The encoder stops once the text is long enough."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, default=_plain).iterencode(value):
        pieces.append(piece if len(piece) <= most else piece[: most + 1])
        size += len(piece)
        if size > most:
            return Shown(f"{_clean(''.join(pieces)[:most])}… and more", True)
    return Shown(_clean("".join(pieces)), False)


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
