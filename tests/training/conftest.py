"""A small run that all tests of this room start from: a tiny language policy learns to echo words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training.loop import Trainer
from palaestra.training.start import train

ECHO: dict[str, Any] = {
    "name": "echo",
    "seed": 3,
    "environment": {"echo": {"turns": 2}},
    "policies": {
        "main": {"policy": {"language": {"hidden": 32, "layers": 2, "heads": 2, "context": 128, "vocabulary": 320}}}
    },
    "warm_start": {"episodes": 64, "epochs": 10, "batch_tokens": 256, "optimizer": {"adamw": {"lr": 1e-2}}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 2, "response_tokens": 3},
    "advantage": {"grpo": {"scale": "none"}},
    "optimizer": {"adamw": {"lr": 1e-3}},
    "training": {"iterations": 4, "token_budget": 512, "checkpoint_every": 2, "threads": 1},
    "evaluation": {"tasks": 8},
}


@pytest.fixture(scope="session")
def clones(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where warm starts are kept, so that each is made once: that this changes nothing, test_clones.py shows."""
    return str(tmp_path_factory.mktemp("clones"))


@pytest.fixture
def echo(tmp_path: Path, clones: str) -> Callable[..., Path]:
    """Runs the small recipe with overrides, returns its folder."""
    small = ECHO | {"warm_start": ECHO["warm_start"] | {"keep": clones}}

    def run(name: str, *overrides: str, layers: Mapping[str, Any] | None = None, **options: Any) -> Path:
        recipe = load([small, *([layers] if layers else [])], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return run


@contextmanager
def stopped_before(iteration: int) -> Iterator[None]:
    """The run inside is ended by Ctrl-C when it comes to this iteration, counted from 0."""
    plain = Trainer.iterate

    def stops(self: Trainer) -> dict[str, float]:
        if self.step == iteration:
            raise KeyboardInterrupt
        return plain(self)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "iterate", stops)
        yield


def curve(folder: Path) -> list[dict[str, float]]:
    """The run's metrics, without what rounding of another batch shape may touch in the last digit."""
    return MetricsLog(folder).metrics.read()


def final_weights(folder: Path) -> bytes:
    """The bytes of the last checkpoint's weights."""
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    return (newest / "main.safetensors").read_bytes()


def recorded(name: str) -> Any:
    """A committed reference."""
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())
