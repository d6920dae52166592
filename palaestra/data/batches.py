"""Cutting samples into mini-batches, and into micro-batches that a model reads at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palaestra.data.protocols.policy import Samples


class Beginnings:
    """Which samples begin alike, for policies that compute equal beginnings of a batch once.

    Args:
        ids: the token ids of each sample.

    Attributes:
        rank: int64 (samples,), the place of each sample in alphabetical order, where equal beginnings are neighbors.
    """

    def __init__(self, ids: Sequence[np.ndarray]) -> None:
        order = sorted(range(len(ids)), key=lambda i: ids[i].astype(">i4").tobytes())
        self.rank = np.empty(len(ids), np.int64)
        self.rank[order] = np.arange(len(ids))
        self._lengths = np.array([len(ids[i]) for i in order], np.int64)
        pairs = zip(order, order[1:], strict=False)
        self._common = np.array([0, *(common_beginning(ids[i], ids[j]) for i, j in pairs)], np.int64)

    def size(self, which: Sequence[int]) -> int:
        """The number of tokens that a batch of these samples computes."""
        ranks = np.sort(self.rank[list(which)])
        shared = sum(int(self._common[a + 1 : b + 1].min()) for a, b in zip(ranks, ranks[1:], strict=False) if b > a)
        return int(self._lengths[ranks].sum()) - shared


def common_beginning(left: np.ndarray, right: np.ndarray) -> int:
    """The number of equal ids at the beginning of two sequences."""
    shortest = min(len(left), len(right))
    differing = np.flatnonzero(left[:shortest] != right[:shortest])
    return int(differing[0]) if len(differing) else shortest


def micro_batches(
    cost: np.ndarray,
    which: Sequence[int],
    *,
    budget: int,
    together: np.ndarray | None = None,
    beginnings: Beginnings | None = None,
) -> list[list[int]]:
    """Cut the samples `which` into batches whose size is at most `budget`.

    Without `beginnings`, the size is samples × longest sample, and samples of similar length are in one batch. With it,
    the size is the number of tokens that are computed, and samples that begin alike are in one batch.

    Samples with equal codes in `together` (samples,) are never separated. Such a unit is a batch of its own if it is
    larger than the budget. Every sample is in exactly one batch.
    """
    found = _units(which, together)
    if beginnings is not None:
        found = sorted(found, key=lambda unit: min(int(beginnings.rank[i]) for i in unit))
    else:
        found = sorted(found, key=lambda unit: (max(int(cost[i]) for i in unit), unit[0]))
    batches: list[list[int]] = []
    for unit in found:
        if beginnings is not None:
            fits = bool(batches) and beginnings.size([*batches[-1], *unit]) <= budget
        else:
            longest = max(int(cost[i]) for i in unit)
            fits = bool(batches) and (len(batches[-1]) + len(unit)) * longest <= budget
        if fits:
            batches[-1] += unit
        else:
            batches.append(list(unit))
    return batches


def micro_batches_of(
    samples: Samples, which: Sequence[int], *, budget: int, together: np.ndarray | None = None
) -> list[list[int]]:
    """The `micro_batches` of these samples, by their `beginnings` if they have them."""
    return micro_batches(samples.cost, which, budget=budget, together=together, beginnings=samples.beginnings)


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
