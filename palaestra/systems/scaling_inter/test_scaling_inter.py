"""The sampler `growing_horizon`:

1. It sets the turn limit of each iteration; a single number in `rounds` is a fixed limit.
2. A cut by the horizon is a truncation: the value of the next observation is computed and bootstrapped.
3. No rounds, rounds that decrease, and a round or a period below 1 are refused.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.data import StopReason
from palaestra.envs.probes.uiform import UIForm
from palaestra.errors import RecipeError
from palaestra.parts.samplers import uniform
from palaestra.store.metrics import MetricsLog
from palaestra.systems.scaling_inter import growing_horizon, horizon
from palaestra.training import loop
from tests.parts.episodes import NETWORK, run

FORMS = UIForm()


def test_the_horizon_grows():  # rule 1
    rounds = (6, 13, 20)
    assert [horizon(step, rounds, 100) for step in (0, 99, 100, 199, 200, 5000)] == [6, 6, 13, 13, 20, 20]
    assert {horizon(step, (8,), 3) for step in range(20)} == {8}
    for step in (0, 150, 250):
        found = growing_horizon(FORMS, step, 3, 7, rounds=rounds, every=100)
        assert [one.task for one in found] == uniform(FORMS, step, 3, 7)
        assert {(one.turns, one.info["horizon"]) for one in found} == {(horizon(step, rounds, 100),) * 2}


@pytest.mark.parametrize(
    ("rounds", "every", "fault"),
    [((), 1, "`rounds` is empty"), ((6, 5), 1, r"\[6, 5\] decreases"), ((0, 5), 1, "has 0"), ((5,), -1, "-1")],
)
def test_bad_horizons_are_refused(rounds, every, fault):  # rule 3
    with pytest.raises(RecipeError, match=fault):
        growing_horizon(FORMS, 0, 2, 0, rounds=rounds, every=every)
    if every > 0:
        with pytest.raises(RecipeError, match=fault) as caught:
            horizon(0, rounds, every)
        assert "[6, 13, 20]" in caught.value.remedy


def test_a_cut_is_a_truncation(tmp_path, monkeypatch):  # rule 2
    seen, plain = [], loop.prepare

    def prepared(batch, *data, **options):
        plain(batch, *data, **options)
        seen.append((batch.kept, batch))

    monkeypatch.setattr(loop, "prepare", prepared)
    growing = {"sampler": {"growing_horizon": {"rounds": [2, 6], "every": 2}}}
    run(tmp_path, [NETWORK, growing, {"advantage": {"ppo": {"gamma": 1.0, "lam": 1.0, "whiten": False}}}])
    assert [max(len(t.steps) for t in whole) <= 2 for whole, _ in seen] == [True, True, False, False]
    for whole, batch in seen[:2]:
        cut = [t for t in whole if t.stop is StopReason.MAX_TURNS]
        assert cut
        for trajectory in cut:
            assert trajectory.outcome is None and trajectory.info["horizon"] == 2
            assert trajectory.steps[-1].truncated and not trajectory.steps[-1].terminated
        table, ends = batch.table, batch.table["truncated"]
        value = table["bootstrap_value"][ends]
        assert bool(torch.isfinite(value).all()) and bool((value != 0).any())
        # Where an episode was cut, the value of the next observation counts.
        target = batch.table["value_target"]
        assert torch.allclose(target[ends], (table["reward"][ends] + value).to(target), atol=1e-5)
    assert MetricsLog(tmp_path).metrics.read()[0]["info/horizon/mean"] == 2.0
