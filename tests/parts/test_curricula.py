"""What must hold of samplers for curricula, side by side, and of difficulty.

1. Neutral settings train bit for bit as `uniform`: `growing_horizon` with the rollout's own limit, `stages` without
   limits.
2. State is in the checkpoint: a stopped and resumed run is the same byte for byte.
3. Environments tell difficulty: the length of the reference solution.
"""

from __future__ import annotations

import pytest

from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.envs.probes.phrase import Phrase
from palaestra.envs.probes.uiform import UIForm
from palaestra.store.metrics import MetricsLog
from tests.parts.episodes import NETWORK, RUN, assert_resumes, run
from tests.training.conftest import final_weights


@pytest.mark.parametrize(
    "sampler",
    [{"growing_horizon": {"rounds": [6], "every": 2}}, {"stages": {"limits": []}}],
    ids=lambda s: next(iter(s)),
)
def test_neutral_samplers_change_nothing(sampler, tmp_path):  # rule 1
    plain, other = run(tmp_path / "plain", [NETWORK]), run(tmp_path / "other", [NETWORK, {"sampler": sampler}])
    assert final_weights(plain) == final_weights(other)
    shared = [MetricsLog(folder).metrics.read() for folder in (plain, other)]
    for one, two in zip(*shared, strict=True):
        own = {name for name in two if name.startswith(("curriculum/", "info/horizon", "time/"))}
        assert set(two) - own == {name for name in one if not name.startswith("time/")}
        assert all(one[name] == two[name] for name in set(two) - own)


@pytest.mark.parametrize(
    "sampler",
    [
        {"stages": {"limits": [5.0], "switch": "plateau", "patience": 2, "margin": 1.0, "replay": 0.5}},
        {"success_window": {"pool": 6, "outside": 0.2}},
    ],
    ids=lambda s: next(iter(s)),
)
def test_resumed_runs_are_the_same(sampler, tmp_path, monkeypatch):  # rule 2
    forms = {"environment": {"uiform": {"longest": 8, "max_turns": 9}}, "rollout": {"max_turns": 9}}
    plain = {key: value for key, value in RUN.items() if key != "environment"}
    monkeypatch.setattr("tests.parts.episodes.RUN", plain)
    assert_resumes([NETWORK, forms, {"sampler": sampler}], tmp_path, monkeypatch, "sampler.state.pt")


@pytest.mark.parametrize("env", [HopSearch(noise=0.0), Phrase(), UIForm()], ids=lambda env: type(env).__name__)
def test_difficulty_is_what_the_expert_needs(env):  # rule 3
    found = set()
    for task in env.tasks("train", 25, 1):
        result, turns = env.reset(task), 0
        while result.observations:
            result, turns = env.step({agent: env.expert(agent) for agent in result.observations}), turns + 1
        assert turns == env.difficulty(task)
        found.add(turns)
    assert len(found) > 1
