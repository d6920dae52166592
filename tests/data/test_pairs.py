"""PairTable: (1) pairs join trajectories of one task whose results differ, by the better and the worse; (2) rows know
their pair; (3) what is no pair is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.algebra.pairs import outcome_pairs
from palaestra.data import PairTable, StepTable
from palaestra.errors import InvalidData, MissingColumn


def table(**columns: Any) -> StepTable:
    """Two tasks with three and two trajectories; the first trajectory has two rows."""
    base = {
        "group": ["g", "g", "g", "g", "h", "h"],
        "trajectory": ["a", "a", "b", "c", "d", "e"],
        "agent": ["x"] * 6,
        "turn": [0, 1, 0, 0, 0, 0],
        "reward": [0.0] * 6,
        "outcome": [1.0, 1.0, 0.0, 0.5, 1.0, 1.0],
    }
    return StepTable(**{**base, **columns})


def test_1_best_with_worst() -> None:
    found = outcome_pairs(table())
    assert found.pairs.tolist() == [[0, 1]] and found.weight.tolist() == [1.0], "the second task is of equals"
    every = outcome_pairs(table(), every=True).pairs.tolist()
    assert sorted(every) == [[0, 1], [0, 2], [2, 1]]


def test_1_padding_is_in_no_pair() -> None:
    padded = table(row_weight=[1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    assert outcome_pairs(padded).pairs.tolist() == [[0, 2]]


def test_2_rows_know_their_pair() -> None:
    assert outcome_pairs(table()).row_pair.tolist() == [0, 0, 0, -1, -1, -1]
    with pytest.raises(InvalidData, match="3 of 3 trajectories are in several pairs"):
        _ = outcome_pairs(table(), every=True).row_pair


@pytest.mark.parametrize(
    ("pairs", "weight", "fault"),
    [
        ([[0, 9]], [1.0], "no row of the table has the trajectory code 9"),
        ([[1, 1]], [1.0], "1 of 1 pairs prefer a trajectory to itself"),
        ([[0, 1]], [-1.0], "must be finite numbers"),
        ([[0, 1]], [float("nan")], "must be finite numbers"),
    ],
)
def test_3_wrong_pairs(pairs: list[list[int]], weight: list[float], fault: str) -> None:
    with pytest.raises(InvalidData, match=fault):
        PairTable(table=table(), pairs=torch.tensor(pairs), weight=torch.tensor(weight))


def test_3_wrong_results() -> None:
    with pytest.raises(InvalidData, match="no finite result"):
        outcome_pairs(table(outcome=[1.0, 1.0, float("nan"), 0.5, 1.0, 1.0]))
    with pytest.raises(MissingColumn, match="`score`"):
        outcome_pairs(table(), column="score")
