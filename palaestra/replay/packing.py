"""Convert episodes to one text and a few flat tensors, and back without loss, for checkpoints.

The same episodes give the same bytes, whether they were played in this process or read from a checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from palaestra.data import (
    Action,
    Failure,
    FinishReason,
    Marks,
    NextPrompt,
    Observation,
    Step,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
)
from palaestra.data.trajectory import Picture, digest_of

KIND, ARRAY, TUPLE = "__is__", "__array__", "__tuple__"
KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Action,
        Failure,
        FinishReason,
        Marks,
        Observation,
        Step,
        StopReason,
        NextPrompt,
        Picture,
        Task,
        ToolCall,
        Trajectory,
    )
}


def pack(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Episodes as {"text": JSON, "arrays": dtype → flat tensor}, which `torch.load` reads with `weights_only=True`.

    Equal images are stored once.
    """
    arrays: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    images: dict[bytes, dict[str, Any]] = {}

    def place(array: np.ndarray) -> dict[str, Any]:
        if array.dtype == np.uint8 and array.ndim == 3:  # an image, which an observation and prompts hold
            key = digest_of(array)
            if key not in images:
                images[key] = placed(array)
            return images[key]
        return placed(array)

    def placed(array: np.ndarray) -> dict[str, Any]:
        kind = str(array.dtype)
        start = sizes.get(kind, 0)
        arrays.setdefault(kind, []).append(array.reshape(-1))
        sizes[kind] = start + array.size
        return {ARRAY: [kind, start, list(array.shape)]}

    text = json.dumps([_plain(trajectory, place) for trajectory in trajectories])
    flat = {kind: torch.from_numpy(np.concatenate(arrays[kind])) for kind in sorted(arrays)}
    return {"text": text, "arrays": flat}


def unpack(packed: Mapping[str, Any]) -> list[Trajectory]:
    """The episodes that `pack` was given, equal in every field."""
    flat = {kind: tensor.numpy() for kind, tensor in packed["arrays"].items()}
    return [_lively(value, flat) for value in json.loads(packed["text"])]


def _plain(value: Any, place: Any) -> Any:
    if isinstance(value, Enum):
        return {KIND: type(value).__name__, "value": value.value}
    if isinstance(value, NextPrompt | Picture):
        return {KIND: type(value).__name__, **{name: _plain(item, place) for name, item in value._asdict().items()}}
    if dataclasses.is_dataclass(value):
        return {KIND: type(value).__name__} | {
            field.name: _plain(getattr(value, field.name), place)
            for field in dataclasses.fields(value)
            if not _is_default(getattr(value, field.name), field.default)
        }
    if isinstance(value, np.ndarray | np.generic):
        return place(np.asarray(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, place) for key, item in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(item, place) for item in value]}
    return [_plain(item, place) for item in value] if isinstance(value, list) else value


def _is_default(value: Any, default: Any) -> bool:
    """Whether a field may be left out, because it is a plain value that is the default of its class."""
    plain = (
        value is None or isinstance(value, bool | int | float | str | Marks) or (isinstance(value, tuple) and not value)
    )
    return plain and not isinstance(value, Enum) and type(value) is type(default) and value == default


def _lively(value: Any, flat: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_lively(item, flat) for item in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        kind, start, shape = value[ARRAY]
        found = flat[kind][start : start + int(np.prod(shape))].reshape(shape).copy()
        return found if shape else found[()]
    if TUPLE in value:
        return tuple(_lively(item, flat) for item in value[TUPLE])
    fields = {name: _lively(item, flat) for name, item in value.items() if name != KIND}
    if KIND not in value:
        return fields
    name: str = value[KIND]
    return KINDS[name](**fields)
