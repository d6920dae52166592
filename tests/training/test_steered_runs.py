"""Runs with HAPO, with the squared objective and with MuonClip: (1) HAPO with every strength at 0 is the run of its
base, weights bit for bit, and its parts change it; (2) entropies reach its loss in a run of one update per iteration
too; (3) a stopped and resumed run goes on byte for byte, scales of temperatures included; (4) the squared objective
trains on trajectories without advantage, whose pull counts; (5) optimizers that tell layers apart get the module, log
what they measure and resume; (6) what has no attention is refused before the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.updates import Updater
from tests.parts.batches import filled
from tests.training.conftest import ECHO, curve, final_weights, stopped_before

Run = Callable[..., Path]
TWICE = ("training.epochs=2", "training.minibatches=2")
HAPO: dict[str, Any] = {
    "strategy": [{"adaptive_temperature": {"strength": 0.2}}],
    "advantage": "hapo",
    "loss": "hapo",
    "aggregate": {"how": "token-mean"},
}
NEUTRAL: dict[str, Any] = {
    "strategy": [{"adaptive_temperature": {"strength": 0.0}}],
    "advantage": {"hapo": {"average": "trajectory", "ddof": 1}},
    "loss": {"hapo": {"redistribution": 0, "clip": 0, "high": 0.28}},
}
BASE: dict[str, Any] = {"advantage": {"grpo": {"scale": "std"}}, "loss": {"ppo_clip": {"high": 0.28, "dual": 10}}}
SQUARED: dict[str, Any] = {
    "advantage": "dr_grpo",
    "loss": {"squared_objective": {"temperature": 0.5}},
    "aggregate": {"how": "sequence-sum"},
}
MUON_CLIP: dict[str, Any] = {"optimizer": {"muon_clip": {"lr": 0.01, "tau": 2.0}}}


def resumed(run: Run, *overrides: str, layers: dict[str, Any]) -> tuple[Path, Path]:
    """A whole run, and one that was stopped in its fourth iteration and resumed."""
    whole = run("whole", *overrides, layers=layers)
    with stopped_before(3):
        run("parts", *overrides, layers=layers)
    return whole, run("parts", *overrides, layers=layers, resume=True)


def test_1_neutral(echo: Run) -> None:
    base, neutral = echo("base", *TWICE, layers=BASE), echo("neutral", *TWICE, layers=NEUTRAL)
    assert final_weights(base) == final_weights(neutral)
    assert [line["policy/loss"] for line in curve(base)] == [line["policy/loss"] for line in curve(neutral)]
    assert final_weights(echo("hapo", *TWICE, layers=HAPO)) != final_weights(base)


def test_2_one_update(echo: Run) -> None:
    lines = curve(echo("once", "training.iterations=2", layers=HAPO))
    assert all(line["policy/entropy_signal"] != 0 for line in lines)
    assert lines[0]["sampling/temperature"] == 1.0 != lines[1]["sampling/temperature"]
    assert lines[0]["mismatch/kl"] < lines[1]["mismatch/kl"]  # sampled hotter and cooler than it is trained


def test_3_resumes(echo: Run) -> None:
    whole, parts = resumed(echo, *TWICE, layers=HAPO)
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert final_weights(parts) == final_weights(whole)


@pytest.mark.parametrize(("loss", "kept"), [("squared_objective", [0, 1, 2]), ("reinforce", [2])])
def test_4_trajectories_without_advantage(loss: str, kept: list[int]) -> None:
    updater = Updater(
        policy=None, optimizer=None, loss=bind("loss", BoundPart(name=loss)), regularizers=[], how="sequence-sum",
        constant=None, epochs=1, minibatches=1, token_budget=64,
    )  # fmt: skip
    batch = filled([[1], [1], [1], [1]], 0).replace(
        advantage=torch.tensor([0.0, 0.0, 1.0, 2.0]), weight=torch.tensor([1.0, 1.0, 1.0, 0.0])
    )
    samples = SimpleNamespace(token_start=np.arange(5), token_index=np.arange(4))
    assert updater._useful(samples, batch.replace(scope="row", counts=batch["weight"], value_weight=None)) == kept


def test_4_runs(echo: Run) -> None:
    lines = curve(echo("squared", *TWICE, "training.iterations=2", layers=SQUARED))
    assert all("policy/log_ratio" in line for line in lines if "policy/loss" in line)


def test_5_muon_clip(echo: Run) -> None:
    whole, parts = resumed(echo, layers=MUON_CLIP)
    assert final_weights(parts) == final_weights(whole)
    lines = curve(parts)
    assert lines == curve(whole)
    assert all(0 <= line["policy/clipped_heads"] <= 1 and line["policy/attention_logit"] > 0 for line in lines)
    warm = {"warm_start": {**ECHO["warm_start"], "optimizer": {"muon": {"lr": 0.01}}}}
    assert final_weights(echo("warm", "training.iterations=1", layers=warm)) != final_weights(whole)


def test_6_no_attention() -> None:
    network = {
        "policies": {"main": {"policy": "network"}},
        "environment": "rooms",
        "optimizer": {"muon_clip": {"lr": 0.1}},
    }
    with pytest.raises(RecipeError, match=r"uses a transformer, and policy `main` \(`network`\) has none"):
        load([network])
    load([{**network, "optimizer": {"muon": {"lr": 0.1}}}])
