"""Draws: one random number for each row of a table, decided by which act the row is.

Knows seeds and the identity of rows: trajectory, agent and turn. Knows nothing of what the numbers are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data.seeds import derive
from palaestra.data.table import StepTable

IDENTITY = ("trajectory", "agent")  # beside the turn


def row_draws(table: StepTable, *, seed: int, purpose: str) -> Float[Tensor, " rows"]:
    """Uniform numbers in [0, 1), float64 (rows,): a function of seed, purpose, trajectory, agent and turn.

    The order of rows and other rows play no part, so that a resumed or re-sorted batch draws the same. Names of
    trajectories carry the iteration in a run, so that every iteration draws anew.
    """
    mixed = np.full(len(table), derive(seed, purpose), np.uint64)
    for name in IDENTITY:
        mixed = _mix(mixed ^ _hashes(table.labels(name))[table[name].numpy()])
    mixed = _mix(mixed ^ table["turn"].numpy().astype(np.uint64))
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _hashes(labels: Sequence[Any]) -> np.ndarray:
    return np.array([derive(0, label) for label in labels], np.uint64)


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64: each bit of the result depends on all bits of the input."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
