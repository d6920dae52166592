"""Random numbers for the rows or larger units of a table. Each depends on a seed and the labels of its unit only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data.seeds import derive
from palaestra.data.table import StepTable

IDENTITY = ("trajectory", "agent")  # with the turn they identify a row


def uniform_per_unit(
    table: StepTable, unit: Sequence[str] = ("trajectory",), *, seed: int, purpose: str
) -> Float[Tensor, " rows"]:
    """Uniform numbers in [0, 1), float64 (rows,). Rows that agree in the columns `unit` share one number.

    A number is a function of seed, purpose and the unit's labels. It does not depend on the order of rows, on other
    units, or on how many rows the unit has. So a resumed or re-sorted batch gets the same numbers. In a run the name
    of a trajectory contains the iteration, so that every iteration gets new numbers.

    Raises: MissingColumn.
    """
    mixed = np.full(len(table), derive(seed, purpose), np.uint64)
    for name in unit:
        mixed = _mix(mixed ^ _identities(table, name))
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) / 2.0**53)


def row_draws(table: StepTable, *, seed: int, purpose: str) -> Float[Tensor, " rows"]:
    """As `uniform_per_unit`, with one number for each row, which its trajectory, agent and turn identify."""
    return uniform_per_unit(table, (*IDENTITY, "turn"), seed=seed, purpose=purpose)


def _identities(table: StepTable, name: str) -> np.ndarray:
    """64 bits that stand for each row's label or number in a column: uint64 (rows,)."""
    values = table[name]
    try:
        labels = table.labels(name)
    except KeyError:  # a column of numbers
        whole = values if values.dtype == torch.int64 else values.double().view(torch.int64)
        return whole.numpy().astype(np.uint64)
    hashes = np.array([*(derive(0, label) for label in labels), 0], np.uint64)  # a missing label has the code −1
    return np.asarray(hashes[values.numpy()])


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64: each bit of the result depends on all bits of the input."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
