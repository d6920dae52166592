"""Values to JSON text, the same text for the same values.

Knows JSON, numpy scalars and whatever has `tolist`. Knows nothing of files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """`value` made of JSON types only; numbers that are not finite become None, since JSON has no word for them.

    Numpy and torch scalars become numbers, their arrays lists, paths text, sets sorted lists.
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
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and torch
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON: {value!r}")


def to_line(value: Mapping[str, Any], *, sort: bool = True) -> str:
    """One line of a JSON-lines file, newline included. Floats are written in their shortest exact form."""
    text = json.dumps(plain(value), sort_keys=sort, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    # Line separators of Unicode would cut the line for some readers.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + "\n"


def to_document(value: Any) -> str:
    """A JSON file that people read: two spaces, sorted keys, newline at the end."""
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
