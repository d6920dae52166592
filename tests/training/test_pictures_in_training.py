"""Runs with images: (1) a run that was stopped goes on byte for byte, and its episodes are read with their images;
(2) `palaestra show` prints an image as one line; (3) a policy learns what only images tell; (4) so it does when low-rank
additions are trained, and the tower does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palaestra.commands import show
from palaestra.recipe import load
from palaestra.store.episodes import EpisodeLog
from palaestra.training.start import train
from tests.training.conftest import curve, final_weights, stopped_before
from tests.vision import vision_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_folder(tmp_path_factory.mktemp("vision") / "model", "smolvlm", scale=1.0, context=192)


def recipe(model: Path, **changes: Any) -> dict[str, Any]:
    """Which color is most frequent? The text does not tell."""
    return {
        "name": "see",
        "seed": 1,
        "environment": {"rasters": {"kinds": ["color"], "text": "none", "scale": 2, "max_turns": 2}},
        "agents": {"*": {"policy": "main", "context": "full_history", "instruction": "none"}},
        "policies": {"main": {"policy": {"language": {"model": str(model), "pictures": True}}}},
        "rollout": {"tasks": 2, "group": 2, "max_turns": 2, "response_tokens": 3},
        "advantage": {"grpo": {"scale": "none"}},
        "regularizers": [{"entropy": {"coefficient": 0.1}}],  # so that every update changes weights
        "optimizer": {"adamw": {"lr": 1e-3}},
        "training": {"iterations": 4, "token_budget": 1024, "checkpoint_every": 2, "threads": 1},
        "evaluation": {"tasks": 2},
    } | changes


def run(folder: Path, content: dict[str, Any], *overrides: str, resume: bool = False) -> Path:
    made = load([content], [f"run={folder}", *overrides])
    train(made.settings, recipe=made.to_json(), quiet=True, resume=resume)
    return folder


def test_1_stopped_and_resumed(model: Path, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", recipe(model))
    with stopped_before(3):
        run(tmp_path / "stopped", recipe(model))
    again = run(tmp_path / "stopped", recipe(model), resume=True)
    assert final_weights(whole) == final_weights(again)
    assert curve(whole) == curve(again)
    assert (whole / "trajectories.jsonl").read_bytes() == (again / "trajectories.jsonl").read_bytes()
    steps = [step for _, _, episode in EpisodeLog(whole).read() for step in episode.steps]
    assert steps and all(len(step.pictures) == 1 for step in steps)
    assert all((step.pictures[0].image == step.observation.image).all() for step in steps)


def test_2_shown(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    (tmp_path / "see.yaml").write_text(json.dumps(recipe(model)))
    show.run(recipe=[str(tmp_path / "see.yaml")])
    printed = capsys.readouterr().out
    assert printed.count("[an image of 16 × 16 pixels, 4 tokens]") == 2  # in the text and among the ids
    assert "<image>" not in printed and "<fake_token_around_image><global-img>[an image" in printed


def success(folder: Path, policy: str = "final") -> float:
    return float(curve(folder)[-1]["success"])
