"""PPR: (1) on episodes of equal length with scores of ½ every step has the reward outcome − ½, and the advantage is the
sum of the rewards to come.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.data import StepTable
from palaestra.systems.ppr.advantage import ppr
from palaestra.systems.ppr.renorm import renorm
from tests.parts.tables import close


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_fixed_length_with_undecided_judge(outcome: float) -> None:  # rule 1
    size = 5
    table = StepTable(
        group=["g"] * size, trajectory=["t"] * size, agent=["x"] * size, turn=range(size), reward=[0.0] * size,
        process=[0.5] * (size - 1) + [float("nan")], outcome=[outcome] * size, value_old=[0.0] * size,
        terminated=[False] * (size - 1) + [True],
    )  # fmt: skip
    reward = renorm(table)
    assert reward.tolist() == [outcome - 0.5] * size
    to_go = ppr(table.replace(reward=reward), whiten=False).advantage
    assert close(to_go, (outcome - 0.5) * torch.arange(size, 0, -1))
