"""Self-play in whole runs: (1) a stopped and resumed run is the same bit for bit, its pool included; (2) both runners
play the same, and the learner alone learns; (3) evaluations are played as without the strategy; (4) critics learn
beside opponents; (5) the asynchronous collector plays against the pool too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.systems.pfsp.self_play import SelfPlay
from palaestra.training.start import train
from tests.extras import skip_without
from tests.training.conftest import stopped_before

KUHN: dict[str, Any] = {
    "name": "kuhn",
    "seed": 1,
    "environment": {"openspiel": {"game": "kuhn_poker"}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "strategy": [{"self_play": {"every": 1, "size": 2, "self_share": 0.5}}],
    "rollout": {"runner": "vector", "tasks": 4, "group": 4, "max_turns": 3},
    "advantage": {"mars": {"by": ["game", "agent"]}},
    "optimizer": {"adamw": {"lr": 0.01}},
    "training": {"iterations": 4, "checkpoint_every": 1, "keep_checkpoints": 9, "threads": 1},
    "evaluation": {"tasks": 8, "every": 2, "temperature": 1.0},
}
Run = Callable[..., Path]


@pytest.fixture
def kuhn(tmp_path: Path) -> Run:
    skip_without("pyspiel")

    def start(name: str, *overrides: str, **options: bool) -> Path:
        recipe = load([KUHN], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return start


def test_1_resume(kuhn: Run) -> None:
    whole = kuhn("whole")
    with stopped_before(2):
        kuhn("parts")
    parts = kuhn("parts", resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl", "checkpoints/step-000004/main.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    states = [
        torch.load(run / "checkpoints/step-000004/strategy.0.state.pt", weights_only=True) for run in (whole, parts)
    ]
    assert [m["number"] for m in states[0]["pool"]["members"]] == [2, 3]
    for one, other in zip(*(state["pool"]["members"] for state in states), strict=True):
        assert {k: v for k, v in one.items() if k != "weights"} == {k: v for k, v in other.items() if k != "weights"}
        assert all(bool((one["weights"][name] == other["weights"][name]).all()) for name in one["weights"])


@pytest.mark.parametrize("runner", ["episodes", "vector"])
def test_2_runners_agree_and_learn(kuhn: Run, runner: str) -> None:
    folder = kuhn(runner, f"rollout.runner={runner}", "training.iterations=2")
    line = MetricsLog(folder).metrics.read()[-1]
    assert line["self_play/pool"] == 2 and 0 < line["self_play/share"] < 1
    assert line["selection/kept"] < 1 and line["policy/grad_norm"] > 0
    again = MetricsLog(kuhn("other", "training.iterations=2")).metrics.read()[-1]
    assert {key: line[key] for key in line if key.startswith("self_play")} == {
        key: again[key] for key in again if key.startswith("self_play")
    }


def test_3_evaluations_are_as_without_it(kuhn: Run) -> None:
    still = "optimizer={adamw: {lr: 1.0e-12}}"
    folders = kuhn("with", still), kuhn("without", still, "strategy=[]")
    returns = [[line["eval/openspiel/return"] for line in MetricsLog(run).evaluations.read()] for run in folders]
    assert returns[0] == returns[1] and len(returns[0]) == 3


def test_4_critics_learn_beside_guests(kuhn: Run) -> None:
    folder = kuhn("critic", "advantage=[ppo]", "regularizers=[value]", "training.iterations=2")
    lines = MetricsLog(folder).metrics.read()
    assert all(np.isfinite(line["policy/grad_norm"]) and line["policy/grad_norm"] > 0 for line in lines)


def test_5_asynchronous_supply(kuhn: Run) -> None:
    folder = kuhn("ahead", "training.max_staleness=1", "rollout.runner=episodes")
    line = MetricsLog(folder).metrics.read()[-1]
    assert line["self_play/pool"] == 2


def test_5_resume_of_an_asynchronous_supply(kuhn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options, met = ("training.max_staleness=2", "rollout.runner=episodes"), []
    put_back, call = SelfPlay.load_state_dict, SelfPlay.__call__
    with stopped_before(2):
        kuhn("parts", *options)
    monkeypatch.setattr(
        SelfPlay, "load_state_dict", lambda self, state: (met.append("put back"), put_back(self, state))
    )
    monkeypatch.setattr(SelfPlay, "__call__", lambda self, *given: (met.append("plays"), call(self, *given))[1])
    kuhn("parts", *options, resume=True)
    assert met[0] == "put back" and met.count("put back") == 1  # not one game against a pool that is not there yet
