"""Write values as JSON text. Equal values give equal texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Convert a value to JSON types.

    Scalars of numpy and torch become numbers, arrays become lists, paths become text, sets become sorted lists. Numbers
    that are not finite become None, because JSON lacks them.

    Raises: TypeError, for anything else.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(plain(item) for item in value)
    if isinstance(value, list) and {*map(type, value)} <= {int}:  # many, if they are those of an image
        return list(value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and torch
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def to_line(value: Mapping[str, Any], *, sort: bool = True) -> str:
    """One line of a JSON-lines file, with its newline. Floats are written in their shortest exact form."""
    text = json.dumps(plain(value), sort_keys=sort, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    # Some readers would end the line at the line separators of Unicode.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n"


def to_document(value: Any) -> str:
    """The text of a JSON file for people: indented by two spaces, with sorted keys and a newline at the end."""
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
