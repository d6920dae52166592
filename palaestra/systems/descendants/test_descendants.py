"""Rules of descendants for every input; hand-derived numbers are in golden.yaml.

1. In a chain D is the reward to go, bit for bit.
2. The computations for trees and for networks agree where both apply.
3. The result is that of a search over all descendants.
4. An act that no other act was shown has its own reward only.
5. Parallel acts that do not read each other may be exchanged.
6. Refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import reward_to_go
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.systems.descendants import descendants
from palaestra.systems.descendants.messages import Readings, descendant_return, readings_of
from tests.parts.tables import close, quick, shuffled, tables


@quick
@given(tables(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(0, 10**6))
def test_chain_is_reward_to_go(table: StepTable, gamma: float, seed: int) -> None:  # rule 1
    reads = [None if turn == 0 else (turn - 1,) for turn in table["turn"].tolist()]
    chain = table.replace(reads=reads, parent=None).take(shuffled(table, seed))
    readings = readings_of(chain, own=False, replies=False, where="test")
    assert torch.equal(descendant_return(chain, readings, gamma=gamma), reward_to_go(chain, gamma=gamma))


def walked(table: StepTable, readings: Readings, gamma: float) -> Tensor:
    """The definition: a breadth-first search over readers."""
    readers: dict[int, list[int]] = {}
    for reader, source in zip(readings.reader.tolist(), readings.source.tolist(), strict=True):
        readers.setdefault(source, []).append(reader)
    out = []
    for row in range(len(table)):
        total, seen, edge, hop = 0.0, {row}, [row], 0
        while edge:
            total += gamma**hop * sum(float(table["reward"][one]) for one in edge)
            fresh = dict.fromkeys(one for other in edge for one in readers.get(other, []) if one not in seen)
            seen |= set(fresh)
            edge, hop = list(fresh), hop + 1
        out.append(total)
    return torch.tensor(out)


@quick
@given(tables(), st.sampled_from([0.25, 0.5, 1.0]), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_it_is_the_sum_over_descendants(
    table: StepTable, gamma: float, own: bool, replies: bool, seed: int
) -> None:  # rules 2, 3
    dice = np.random.default_rng(seed)
    turns = table["turn"].tolist()
    said = [None if dice.random() < 0.3 else [t for t in range(turn) if dice.random() < 0.4] for turn in turns]
    for each in (table, table.replace(reads=said)):
        readings = readings_of(each, own=own, replies=replies, where="test")
        found = descendant_return(each, readings, gamma=gamma)
        assert close(found, walked(each, readings, gamma))


@quick
@given(tables())
def test_what_nobody_read(table: StepTable) -> None:  # rule 4
    silent = table.replace(reads=[()] * len(table))
    readings = readings_of(silent, own=False, replies=False, where="test")
    assert not len(readings.reader)
    assert torch.equal(descendant_return(silent, readings, gamma=1.0), table["reward"])


def test_parallel_acts_may_be_exchanged() -> None:  # rule 5
    reads, reward = [(), (0,), (0,), (1, 2)], [0.0, 0.25, 0.5, 1.0]
    columns: dict[str, Any] = {"group": ["g"] * 8, "trajectory": ["a"] * 4 + ["b"] * 4, "agent": list("pqrs") * 2}
    table = StepTable(turn=[0, 1, 2, 3] * 2, reward=reward + [0.0] * 4, reads=reads * 2, **columns)
    other = StepTable(turn=[0, 2, 1, 3] * 2, reward=reward + [0.0] * 4, reads=reads * 2, **columns)
    assert torch.equal(descendants(table, own=False), descendants(other, own=False))
    together = readings_of(table, own=False, replies=False, where="test")
    assert descendant_return(table, together, gamma=1.0)[:4].tolist() == [1.75, 1.25, 1.5, 1.0]


def test_what_descendants_refuses() -> None:  # rule 6
    columns: dict[str, Any] = {"group": ["g"] * 4, "trajectory": list("aabb"), "agent": ["x"] * 4, "reward": [0.0] * 4}
    for reads in ([None, (1,), None, None], [(3,), None, None, None], [None, (-1,), None, None]):
        with pytest.raises(InvalidData, match="not an earlier act of its trajectory"):
            descendants(StepTable(turn=[0, 1, 0, 1], reads=reads, **columns))
    with pytest.raises(InvalidData, match="not the turn of an act"):
        descendants(StepTable(turn=[0, 1, 0, 1], parent=[None, "x", None, None], **columns))
    columns |= {"group": ["g"] * 3, "trajectory": ["a"] * 3, "agent": list("xyz"), "reward": [0.0] * 3}
    with pytest.raises(InvalidData, match="which two acts share"):
        descendants(StepTable(turn=[0, 0, 1], reads=[None, None, (0,)], **columns))
