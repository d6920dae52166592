"""Cutting samples into mini-batches and token-budget micro-batches. Knows costs and seeds only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def micro_batches(cost: np.ndarray, which: Sequence[int], *, budget: int) -> list[list[int]]:
    """`which` cut so that (samples × longest sample) stays within `budget`, similar lengths together.

    A sample longer than the budget stands alone. Deterministic; every sample appears once.
    """
    order = sorted(which, key=lambda i: (int(cost[i]), i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * int(cost[i]) <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def mini_batches(which: Sequence[int], count: int, *, seed: int) -> list[list[int]]:
    """`which` shuffled and cut into `count` parts of nearly equal number; empty parts are left out."""
    order = np.random.default_rng(seed).permutation(np.asarray(which, np.int64))
    return [part.tolist() for part in np.array_split(order, count) if len(part)]
