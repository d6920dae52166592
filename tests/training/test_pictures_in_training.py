"""Runs with images: (1) a run that was stopped goes on byte for byte, and its episodes are read with their images;
(2) `palaestra show` prints an image as one line; (3) images of every world that draws reach the policy, after a cut
too; (4) a policy learns what only images tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.commands import show
from palaestra.recipe import load
from palaestra.store.episodes import EpisodeLog
from palaestra.training.start import train
from tests.extras import needs
from tests.training.conftest import curve, final_weights, stopped_before
from tests.vision import vision_folder

PONG = "pettingzoo.butterfly.cooperative_pong_v6"
MINIWOB = [needs("miniwob", "selenium", "browser"), pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_folder(tmp_path_factory.mktemp("vision") / "model", "smolvlm", scale=1.0, context=192)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For observations with long texts."""
    return vision_folder(tmp_path_factory.mktemp("vision") / "large", "smolvlm", scale=1.0, context=1024)


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
    (tmp_path / "see.yaml").write_text(json.dumps(recipe(model)))
    show.run(recipe=[str(tmp_path / "see.yaml")])
    printed = capsys.readouterr().out
    assert printed.count("[an image of 16 × 16 pixels, 4 tokens]") == 2  # in the text and among the ids
    assert "<image>" not in printed and "<fake_token_around_image><global-img>[an image" in printed


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ("rasters", {"kinds": ["jigsaw", "count"], "text": "none"}),
        ("craft", {}),
        ("puzzles", {}),
        ("puzzles", {"games": ["mines"], "text": "brief", "misread": 0.5}),
        pytest.param("miniwob", {"tasks": ["click-button"], "observation": "screenshot"}, marks=MINIWOB),
        pytest.param("pettingzoo", {"env": PONG, "max_turns": 2}, marks=needs("pettingzoo", "pygame")),
    ],
)
def test_3_every_world_that_draws(large: Path, world: str, options: dict[str, Any], tmp_path: Path) -> None:
    content = recipe(large, environment={world: options})
    content["agents"] = {"*": {"policy": "main", "context": "latest_only", "instruction": "none"}}
    content["policies"]["main"]["policy"]["language"]["value_head"] = True
    content["training"] |= {"iterations": 1, "token_budget": 4096}
    folder = run(tmp_path / "run", content)
    (line,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert line["policy/grad_norm"] > 0
    steps, cut = 0, 0
    for _, _, episode in EpisodeLog(folder).read():
        seen = [(step.pictures, step.observation.image) for step in episode.steps]
        right = all(len(pictures) == 1 and np.array_equal(pictures[0].image, image) for pictures, image in seen)
        right = right and all(len(prompt.pictures) == 1 for prompt in episode.next_prompts.values())
        assert right, episode.task.seed  # images make long messages
        steps, cut = steps + len(seen), cut + len(episode.next_prompts)
    assert steps >= 4 and cut >= 1


COLORS = '''
"""An image of one color with speckles. The text does not tell which."""

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task, derive

NAMES = ("black", "red", "green", "blue")


class Colors:
    agents = ("player",)
    abilities = ("tasks", "expert")
    provides = frozenset({"outcome"})

    def tasks(self, split, n, seed):
        return [Task(env="colors", seed=derive(seed, split, i), split=split) for i in range(n)]

    def reset(self, task):
        draw = np.random.default_rng(task.seed)
        self.right = int(draw.integers(4))
        image = draw.integers(0, 80, (16, 16, 3))
        if self.right:
            image[:, :, self.right - 1] += 150
        seen = Observation(text="what do you see?", image=image.astype(np.uint8), legal=list(NAMES))
        return StepResult(observations={"player": seen}, info={"success": False})

    def step(self, actions):
        right = (actions["player"].text or "").strip() == NAMES[self.right]
        over = frozenset({"player"})
        return StepResult(observations={}, rewards={"player": float(right)}, terminated=over, info={"success": right})

    def expert(self, agent):
        return Action(text=NAMES[self.right])

    def close(self):
        pass
'''


@pytest.mark.slow
def test_4_learning(model: Path, tmp_path: Path) -> None:
    (tmp_path / "colors.py").write_text(COLORS)
    content = recipe(
        model,
        environment=f"{tmp_path / 'colors.py'}:Colors",
        agents={"*": {"policy": "main", "context": "latest_only", "instruction": "none"}},
        warm_start={"episodes": 48, "epochs": 8, "batch_tokens": 256, "optimizer": {"adamw": {"lr": 3e-3}}},
        rollout={"tasks": 16, "group": 8, "max_turns": 1, "response_tokens": 4},
        selection=["constant_groups"],
        regularizers=[],
        loss={"ppo_clip": {"low": 0.2, "high": 0.28}},
        optimizer={"adamw": {"lr": 1.5e-3}},
        training={"iterations": 30, "epochs": 2, "minibatches": 2, "token_budget": 4096, "threads": 1},
        evaluation={"tasks": 128, "every": 30, "temperature": 1.0},
    )
    folder = run(tmp_path / "run", content)
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    first, last = (next(value for name, value in lines[i].items() if name.endswith("/success")) for i in (0, -1))
    assert first < 0.35  # the demonstrations are too few
    assert last > 0.5  # who does not look is right in a quarter of the tasks
