"""Losses and denominators in a run: (1) neutral options of DAPO and GSPO are GRPO and the clipped surrogate, byte for
byte; (2) ratios of whole responses do not depend on micro-batches; (3) what a part rejects still counts in the
denominators, what it masks does not; (4) CISPO learns, and no token loses its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train

SETUP: dict[str, Any] = {
    "seed": 5,
    "environment": {"lengths": {"short": 2, "long": 5}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"runner": "vector", "tasks": 6, "group": 4},
    "optimizer": {"adamw": {"lr": 1e-2}},
    "training": {"iterations": 3, "epochs": 2, "minibatches": 2},
    "evaluation": {"tasks": 4},
}
Run = Callable[..., tuple[list[dict[str, float]], bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small setup with a method and overrides: the log, and the bytes of the last weights."""

    def trained(method: str, *overrides: str) -> tuple[list[dict[str, float]], bytes]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        recipe = load([SETUP, method], [f"run={folder}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        newest = sorted((folder / "checkpoints").iterdir())[-1]
        return MetricsLog(folder).metrics.read(), (newest / "main.safetensors").read_bytes()

    return trained


def test_neutral_dapo(run: Run) -> None:  # rule 1
    off = ("strategy=[]", "reward.overlong.factor=0", "loss.ppo_clip.high=0.2", "loss.ppo_clip.dual=null")
    assert run("dapo/method.yaml", *off)[1] == run("grpo/method.yaml", "aggregate.how=token-mean")[1]


def test_neutral_filter(run: Run) -> None:  # rule 1
    off = ("strategy=[]", "weights.overlong_filter.stops=[]", "loss.ppo_clip.high=0.2", "loss.ppo_clip.dual=null")
    assert run("dapo/dapo_filtered.yaml", *off)[1] == run("grpo/method.yaml", "aggregate.how=token-mean")[1]


@pytest.mark.parametrize("level", ["token", "turn"])
def test_neutral_gspo(run: Run, level: str) -> None:  # rule 1: a turn of a network policy has one token
    options = (f"loss.gspo.level={level}", "loss.gspo.low=0.2", "loss.gspo.high=0.2")
    assert (
        run("gspo/method.yaml", *options)[1]
        == run("grpo/method.yaml", "training.epochs=1", "training.minibatches=4")[1]
    )


@pytest.mark.parametrize("how", ["token-mean", "sequence-mean", "trajectory-step-mean"])
def test_micro_batches(run: Run, how: str) -> None:  # rule 2
    wide = ("loss.gspo.low=0.05", "loss.gspo.high=0.05", f"aggregate.how={how}")
    one, other = (run("gspo/method.yaml", *wide, f"training.token_budget={n}")[0] for n in (8, 4096))
    for name in ("policy/grad_norm", "policy/spread", "policy/clip_fraction"):
        assert [line[name] for line in one] == pytest.approx([line[name] for line in other], rel=1e-3, abs=1e-6)
    assert any(line["policy/clip_fraction"] > 0 for line in one)


def every_other(table: StepTable) -> Tensor:
    """1 on the rows of even samples, else 0."""
    return (table["trajectory"] % 2 == 0).float()


@register("weights", "rejecting", writes=("weight",))
def rejecting(table: StepTable) -> Tensor:
    """The same, as a rejection."""
    return every_other(table)


def test_rejected_tokens_count(run: Run) -> None:  # rule 3
    def norm(part: str, *overrides: str) -> float:
        whole = ("training.iterations=1", "training.epochs=1", "training.minibatches=1", *overrides)
        log, _ = run("grpo/method.yaml", f"weights=['{__file__}:{part}']", *whole)
        return float(log[0]["policy/grad_norm"])

    constant = ("aggregate.how=sequence-sum-norm", "aggregate.constant=5")
    assert norm("rejecting", *constant) == pytest.approx(norm("every_other", *constant))
    assert norm("rejecting", "aggregate.how=token-mean") < 0.8 * norm("every_other", "aggregate.how=token-mean")


def test_cispo(run: Run) -> None:  # rule 4
    log, _ = run("cispo/method.yaml", "loss.cispo.high=0.01", "training.iterations=8")
    log = [line for line in log if "policy/ratio" in line]  # iterations with a signal
    assert all(line["policy/clip_fraction"] == 0 for line in log)
    assert any(line["policy/weight_clipped"] > 0 for line in log)
    assert all(torch.isfinite(torch.tensor(line["policy/surrogate"])) for line in log)
    assert log[-1]["outcome/mean"] > log[0]["outcome/mean"]
