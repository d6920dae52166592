"""Write the problem of a task as JSON values, so that equal problems have equal hashes whatever their seeds are."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np


def as_json(value: Any) -> Any:
    """A value as JSON: a dataclass as an object, a set as a sorted list, a mapping as a sorted list of key and value.

    >>> as_json({(1, 2): frozenset("ba")})
    [[[1, 2], ['a', 'b']]]
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _sorted([as_json(key), as_json(inner)] for key, inner in value.items())
    if isinstance(value, set | frozenset):
        return _sorted(as_json(inner) for inner in value)
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return str(value)


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=repr)
