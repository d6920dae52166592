"""Similar texts:

1. The earliest text of a set starts a cluster, later ones join the first similar cluster.
2. The order of rows does not matter.
3. Sets have separate clusters; missing texts and padding are alone.
4. Many equal texts are compared quickly.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.systems.gigpo.similarity import similar_texts


def table(texts: Any, **columns: Any) -> StepTable:
    size = len(texts)
    base: dict[str, Any] = {"group": ["g"] * size, "trajectory": ["a"] * size, "agent": ["x"] * size}
    base |= {"turn": range(size), "reward": [0.0] * size, "state_text": texts}
    return StepTable(**{**base, **columns})


def clusters(some: StepTable, threshold: float = 0.8) -> list[set[int]]:
    codes = similar_texts(some, by=("group",), threshold=threshold).codes.tolist()
    return [{row for row, own in enumerate(codes) if own == code} for code in dict.fromkeys(codes)]


def test_the_first_that_is_alike() -> None:  # rule 1
    assert clusters(table(["aaaaaaaa", "aaaaaaab", "aaaaaabb", "zzzz"])) == [{0, 1}, {2}, {3}]
    assert clusters(table(["aaaaaaab", "aaaaaaaa", "aaaaaabb", "zzzz"])) == [{0, 1, 2}, {3}]
    assert clusters(table(["aaaaaaaa", "aaaaaaab"]), threshold=0.95) == [{0}, {1}]


def test_order_of_rows() -> None:  # rule 2
    texts = ["aaaaaaab", "aaaaaaaa", "aaaaaabb", "aaaaabbb", "zzzz", "zzzy"]
    some = table(texts, trajectory=["a", "b", "a", "b", "a", "b"], turn=[0, 0, 1, 1, 2, 2])
    for seed in range(10):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        found = clusters(some.take(order))
        assert {frozenset(int(order[row]) for row in one) for one in found} == {frozenset(c) for c in clusters(some)}


def test_sets_missing_texts_and_padding() -> None:  # rule 3
    apart = table(["aaaa", "aaaa"], group=["g", "h"], trajectory=["a", "b"])
    assert clusters(apart) == [{0}, {1}]
    assert clusters(table(["aaaa", None, None, "aaaa"])) == [{0, 3}, {1}, {2}]
    padded = table(["aaab", "aaaa", "aabb"], row_weight=[0.0, 1.0, 1.0])
    assert clusters(padded, threshold=0.5) == [{0}, {1, 2}], "padding starts no cluster"
    with pytest.raises(InvalidData, match="the column contains 1"):
        similar_texts(table([1, 2]), by=("group",), threshold=0.5)
    with pytest.raises(MissingColumn, match="no row has a value"):
        similar_texts(table([None, None]), by=("group",), threshold=0.5)


def test_equal_texts_are_compared_once() -> None:  # rule 4
    started = time.perf_counter()
    many = table([f"you are in room {place % 20}, exits north and west" for place in range(20_000)])
    assert len(clusters(many, threshold=0.99)) == 20
    assert time.perf_counter() - started < 3
