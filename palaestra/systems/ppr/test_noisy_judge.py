"""The noisy judge: (1) it keeps the share of scores that `accuracy` says, the same ones for the same seed, and rows
without a score keep none.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.errors import MissingColumn
from palaestra.systems.ppr.noisy_judge import noisy_judge
from tests.parts.small_tables import answers, at, judged


def test_errors_of_a_judge() -> None:  # rule 1
    table = judged([0.25] * 4000, 1.0)
    iteration = at(seed=7)
    heard = noisy_judge(table, iteration, accuracy=0.8)["process"]
    assert set(heard[:-1].tolist()) == {0.25, 0.75} and bool(heard[-1].isnan())
    assert 0.77 < float((heard[:-1] == 0.25).float().mean()) < 0.83
    assert iteration.metrics["judge/turned"] == pytest.approx(float((heard == 0.75).float().mean()), abs=1e-3)
    again, other = (noisy_judge(table, at(seed=seed), accuracy=0.8)["process"] for seed in (7, 8))
    assert torch.equal(again.nan_to_num(), heard.nan_to_num())
    assert not torch.equal(other.nan_to_num(), heard.nan_to_num())
    sure = noisy_judge(table, at(), accuracy=1.0)["process"]
    assert torch.equal(sure.nan_to_num(), table["process"].nan_to_num())
    with pytest.raises(MissingColumn, match="process"):
        noisy_judge(answers(1.0, 2.0), at())
