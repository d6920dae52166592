"""Training on windows of long episodes: (1) every generated token enters the policy's loss exactly once, and the
critic's exactly once if its episode ever ends; (2) a run that is stopped while episodes are suspended, and resumed, is
the same byte for byte; (3) suspended episodes are neither failures nor successes in the metrics; (4) what was spent
is counted once; (5) an iteration in which nothing ends still moves the policy, and not the critic; (6) old tokens
reach the critic's loss, although their weight is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palaestra.data import Batch, Iteration, Trajectory
from palaestra.recipe import load
from palaestra.training.loop import Trainer
from palaestra.training.monitor.metrics import spent
from palaestra.training.start import train
from palaestra.training.updates import Updater
from tests.training.conftest import curve, final_weights, stopped_before

LONG: dict[str, Any] = {
    "name": "long",
    "seed": 5,
    "environment": {"counting": {"shortest": 4, "longest": 24}},
    "policies": {"main": {"policy": {"network": {"hidden": [16]}}}},
    "rollout": {"tasks": 8, "group": 1, "max_turns": 40, "window": 6},
    "optimizer": {"adamw": {"lr": 1e-2}},
    "training": {"iterations": 8, "epochs": 2, "minibatches": 2, "checkpoint_every": 1, "keep_checkpoints": 9},
    "evaluation": {"tasks": 4},
}
Run = Callable[..., Path]


@pytest.fixture
def long(tmp_path: Path) -> Run:
    """Trains by T-PPO with overrides, returns the run folder."""

    def start(name: str = "run", *overrides: str, **options: bool) -> Path:
        recipe = load([LONG, "t_ppo/method.yaml", {"rollout": LONG["rollout"]}], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return start


def test_1_every_token_once(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    generated, learned, judged, over = Counter[Any](), Counter[Any](), Counter[Any](), set[str]()
    plain = Updater.update

    def watched(self: Updater, batch: Batch, iteration: Iteration, *, seed: int) -> dict[str, float]:
        weight, value_weight = batch.table["weight"], batch.table["value_weight"]
        for row in iteration.rows:
            act = (row.trajectory.id, row.step.turn)
            generated[act] += int(row.step.marks.fresh)
            learned[act] += int(weight[row.start])
            judged[act] += int(value_weight[row.start])
            if row.step.terminated:
                over.add(row.trajectory.id)
        return plain(self, batch, iteration, seed=seed)

    monkeypatch.setattr(Updater, "update", watched)
    long()
    assert set(generated.values()) == {1} and learned == generated
    assert {act for act, times in judged.items() if times} == {act for act in generated if act[0] in over}
    assert max(judged.values()) == 1
    assert 10 < len(over) < len({name for name, _ in generated}), "some are still suspended"


def test_2_resume_is_bit_for_bit(long: Run) -> None:
    whole = long("whole")
    with stopped_before(5):
        long("parts")
    parts = long("parts", resume=True)
    assert curve(parts)[5]["rollout/suspended"] > 0
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert final_weights(parts) == final_weights(whole)


def test_3_metrics(long: Run) -> None:
    for line in curve(long()):
        assert line["rollout/finished"] + line["rollout/suspended"] == 8
        assert line["stop/suspended"] == line["rollout/suspended"] / 8
        assert line["episodes/failed"] == 0 and line["staleness/max"] == 0
        assert 1 <= line["rollout/longest"] <= 6
        assert ("reward/mean" in line) == ("outcome/mean" in line) == (line["rollout/finished"] > 0)
    first = curve(long("whole", "rollout.window=null"))[0]
    assert first["rollout/suspended"] == 0 and first["rollout/longest"] > 6


def test_4_spent_once(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    acts, counted = set[Any](), 0
    plain = Trainer.count

    def watched(self: Trainer, played: list[Trajectory]) -> None:
        nonlocal counted
        acts.update((t.id, step.turn) for t in played for step in t.steps)
        steps, tokens = spent(played)
        assert steps == tokens
        counted += steps
        plain(self, played)

    monkeypatch.setattr(Trainer, "count", watched)
    last = curve(long())[-1]
    assert counted == len(acts)
    assert last["environment_steps"] == last["tokens"] == counted


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "main.safetensors")


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of weights that differ."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_5_nothing_ends(long: Run) -> None:
    folder = long("none", "training.iterations=1", "rollout.window=3", "environment.counting.shortest=20")
    assert curve(folder)[0]["rollout/finished"] == 0 and curve(folder)[0]["value/loss"] == 0
    moved = changed(weights(folder, 0), weights(folder, 1))
    assert moved and not any("critic" in name for name in moved)


def test_6_old_tokens_reach_the_critic(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Updater.update

    def nothing_is_fresh(self: Updater, batch: Batch, iteration: Iteration, *, seed: int) -> dict[str, float]:
        nothing = torch.zeros_like(batch.table["weight"])
        batch.table = batch.table.replace(weight=nothing)
        return plain(self, batch, iteration, seed=seed)

    monkeypatch.setattr(Updater, "update", nothing_is_fresh)
    folder = long()
    moved = changed(weights(folder, 0), weights(folder, 8))
    assert moved and all("critic" in name for name in moved)
