"""Cutting samples into mini-batches, and into micro-batches that a model reads at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palaestra.data.protocols import Samples


def micro_batches(
    cost: np.ndarray, which: Sequence[int], *, budget: int, together: np.ndarray | None = None
) -> list[list[int]]:
    """Cut the samples `which` into batches whose size, samples × longest sample, is at most `budget`.

    Samples of similar length are in one batch. Samples with equal codes in `together` (samples,) are never separated.
    Such a unit is a batch of its own if it is larger than the budget. Every sample is in exactly one batch.
    """
    units = sorted(_units(which, together), key=lambda unit: (max(int(cost[i]) for i in unit), unit[0]))
    batches: list[list[int]] = []
    for unit in units:
        longest = max(int(cost[i]) for i in unit)
        if batches and (len(batches[-1]) + len(unit)) * longest <= budget:
            batches[-1] += unit
        else:
            batches.append(list(unit))
    return batches


def mini_batches(which: Sequence[int], count: int, *, seed: int, together: np.ndarray | None = None) -> list[list[int]]:
    """Shuffle the samples `which` and cut them into `count` parts of nearly equal size. Empty parts are left out.

    Samples with equal codes in `together` (samples,) stay in one part.
    """
    units = _units(which, together)
    order = np.random.default_rng(seed).permutation(len(units))
    return [[i for place in part for i in units[place]] for part in np.array_split(order, count) if len(part)]


def _units(which: Sequence[int], together: np.ndarray | None) -> list[list[int]]:
    """The sets of samples that stay together, in the order of their first samples."""
    found: dict[int, list[int]] = {}
    for i in which:
        found.setdefault(int(i) if together is None else int(together[i]), []).append(int(i))
    return list(found.values())


def token_index(samples: Samples, which: Sequence[int]) -> np.ndarray:
    """Positions of these samples' response tokens in the table's flat order, in the order of `which`."""
    start = samples.token_start
    pieces = [samples.token_index[start[i] : start[i + 1]] for i in which]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
