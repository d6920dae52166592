"""Conversion of column values: numbers and codes to tensors, labels to codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from palaestra.errors import InvalidData
from palaestra.registry.column_names import COUNTS, FLAGS, NUMBERS


def label(value: Any) -> Any:
    """A value of `info` as a label. A dict over agents gives None, since it does not label one step or trajectory."""
    return None if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value


def hashable(value: Any) -> Any:
    """The value of an action, made hashable: an array becomes its bytes."""
    return value.tobytes() if isinstance(value, np.ndarray) else value


def places(last: Bool[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """How many rows of its set come before each row, for rows in the order of `StepTable.timeline`."""
    ends = last.nonzero()[:, 0]
    start = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    return torch.arange(len(last)) - torch.repeat_interleave(start, torch.diff(ends, prepend=ends.new_full((1,), -1)))


def pick(values: Any, rows: Tensor) -> Any:
    """The values of these rows, in their order."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def numeric(values: Any) -> bool:
    """Whether these are numbers or flags."""
    try:
        return isinstance(values, Tensor) or (not _have_text(values) and bool(np.asarray(values).dtype.kind in "biuf"))
    except ValueError:  # lists of unequal lengths
        return False


def _have_text(values: Any) -> bool:
    """Whether there is a text among them. An array of texts would give each the length of the longest."""
    kinds = set(map(type, np.asarray(values, object).flat)) if isinstance(values, list | tuple) else set()
    return any(issubclass(kind, str | bytes) for kind in kinds)


def numbers(name: str, values: Any) -> Tensor:
    """A column of numbers: bool for flags, int64 for counts, else float32.

    Raises: InvalidData, if it is not one number per row.
    """
    column = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if column.ndim != 1 and (name in (*NUMBERS, *COUNTS, *FLAGS) or column.ndim == 0):
        raise InvalidData(where=f"column `{name}`", what=f"its shape is {tuple(column.shape)}, not (rows,).")
    if name in FLAGS:
        return column.bool()
    if name not in COUNTS and (column.is_floating_point() or name in NUMBERS):
        return column.float()
    return column.long()


def factorize(values: Any) -> tuple[Int[Tensor, " rows"], list[Any]]:
    """Codes (None → −1) and the labels that they stand for. Lists with equal items are one label.

    Codes follow the order of first appearance; those of an array of numbers follow the sorted values.
    """
    if isinstance(values, range | Tensor) or (isinstance(values, np.ndarray) and values.dtype.kind in "iub"):
        labels, codes = np.unique(np.asarray(values), return_inverse=True)
        return torch.from_numpy(codes.astype(np.int64).reshape(-1)), labels.tolist()
    seen: dict[Any, int] = {None: -1}
    found = [seen.setdefault(tuple(v) if isinstance(v, list) else v, len(seen) - 1) for v in values]
    del seen[None]
    return torch.tensor(found, dtype=torch.int64), list(seen)
