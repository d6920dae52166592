"""The noisy judge: (1) it keeps the share that it says, the same each time, and silent rows stay silent."""

from __future__ import annotations

import pytest
import torch

from palaestra.errors import MissingColumn
from palaestra.systems.ppr.noisy_judge import NoisyJudge
from tests.parts.small_tables import answers, at, judged


def test_errors_of_a_judge() -> None:  # rule 1
    table = judged([0.25] * 4000, 1.0)
    judge = NoisyJudge(accuracy=0.8)
    heard = judge(table, at(seed=7))["process"]
    assert set(heard[:-1].tolist()) == {0.25, 0.75} and bool(heard[-1].isnan())
    assert 0.77 < float((heard[:-1] == 0.25).float().mean()) < 0.83
    assert judge.learn(table, at())["judge/turned"] == pytest.approx(float((heard == 0.75).float().mean()), abs=1e-3)
    again = NoisyJudge(accuracy=0.8)
    again.load_state_dict(judge.state_dict())
    assert torch.equal(again(table, at(seed=7))["process"].nan_to_num(), heard.nan_to_num())
    assert not torch.equal(judge(table, at(seed=8))["process"].nan_to_num(), heard.nan_to_num())
    sure = NoisyJudge(accuracy=1.0)(table, at())["process"]
    assert torch.equal(sure.nan_to_num(), table["process"].nan_to_num())
    with pytest.raises(MissingColumn, match="process"):
        judge(answers(1.0, 2.0), at())
