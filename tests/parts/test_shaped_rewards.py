"""Rewards that join, scale and anneal, of several systems: (1) padding gets nothing from any of them."""

from __future__ import annotations

from typing import Any

from palaestra.data import StepTable
from palaestra.systems.ppo_max import RunningScale
from palaestra.systems.ppr.renorm import renorm
from palaestra.systems.turn_gae.dense_then_sparse import dense_then_sparse
from tests.parts.small_tables import NAN, answers, at, judged
from tests.parts.tables import close


def climbing(**columns: Any) -> StepTable:
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["x"] * 6,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0.0] * 6,
        "progress": [1.0, 0.0, 1.0, 2.0, 0.0, 1.0],
        "outcome": [1.0] * 4 + [0.0] * 2,
        "invalid": [False, True, False, False, False, False],
    }
    return StepTable(**{**base, **columns})


def test_padding() -> None:  # rule 1
    padded = {"row_weight": [1.0, 1.0, 0.0]}
    assert renorm(judged([0.5, 0.5], 1.0, process=[0.5, NAN, 9.0], **padded)).tolist() == [0.5, 0.5, 0.0]
    scale = RunningScale()
    assert close(scale(answers(1, 3, 99, **padded), at()), [0.7071, 2.1213, 0.0])
    assert scale.count == 2
    weights = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert dense_then_sparse(climbing(row_weight=weights), at()).tolist() == [1.0, -0.5, 3.0, 0.0, 0.0, 1.0]
