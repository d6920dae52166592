"""Hand-made episodes of a network policy, and small runs, for tests of rewards that learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Observation, RunSetup, Step, StepTable, Task, Trajectory, rows_of
from palaestra.data.iteration import Iteration
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.training.loop import Trainer
from palaestra.training.start import train

SETUP = RunSetup(seed=0, vector_size=4, action_count=3)


def policy(seed: int = 0) -> NetworkPolicy:
    return NetworkPolicy("main", RunSetup(seed=seed, vector_size=4, action_count=3), hidden=(8,))


def episode(acting: Any, sample: int, actions: Sequence[int], won: float, *, group: str = "g") -> Trajectory:
    """State k at turn k, these actions, the reward on the last step; log-probabilities are what `acting` gives."""
    vectors = np.eye(4, dtype=np.float32)[np.arange(len(actions)) % 4]
    steps = [
        Step(
            agent="x",
            turn=turn,
            action=Action(value=taken, tokens=np.array([taken], np.int32), logprobs=np.zeros(1, np.float32)),
            observation=Observation(vector=vectors[turn]),
            reward=won if turn == len(actions) - 1 else 0.0,
            policy="main",
            terminated=turn == len(actions) - 1,
        )
        for turn, taken in enumerate(actions)
    ]
    trajectory = Trajectory(task=Task(env="line", seed=0), group=group, sample=sample, steps=steps, outcome=won)
    said = at(acting, [trajectory]).logprob(acting, "main").numpy()
    for step, logprob in zip(steps, said, strict=True):
        step.action.logprobs = np.array([logprob], np.float32)
    return trajectory


def at(acting: Any, trajectories: Sequence[Trajectory], *, step: int = 0, budget: int = 64) -> Iteration:
    seen = Iteration({"main": acting}, step, seed=step, temperature=1.0, token_budget=budget)
    seen.rows = rows_of(trajectories)
    return seen


def table_of(trajectories: Sequence[Trajectory]) -> StepTable:
    return StepTable.from_trajectories(trajectories)


# ---- runs -------------------------------------------------------------------------------------------------
RUN: dict[str, Any] = {
    "name": "rooms",
    "seed": 3,
    "environment": {"rooms": {"rooms": 4, "max_turns": 6, "mazes": 2}},
    "optimizer": {"adamw": {"lr": 1e-3}},
    "training": {"iterations": 4, "token_budget": 2048, "checkpoint_every": 2, "threads": 1},
    "evaluation": {"tasks": 8},
}
NETWORK: dict[str, Any] = {
    "policies": {"main": {"policy": {"network": {"hidden": [16]}}}},
    "rollout": {"runner": "vector", "tasks": 2, "group": 4, "max_turns": 6, "in_flight": 8},
    "warm_start": {"episodes": 16, "epochs": 8},
}
LANGUAGE: dict[str, Any] = {
    "policies": {
        "main": {"policy": {"language": {"hidden": 32, "layers": 1, "heads": 2, "context": 256, "vocabulary": 320}}}
    },
    "rollout": {"tasks": 2, "group": 4, "max_turns": 6, "response_tokens": 4},
    "warm_start": {"episodes": 32, "epochs": 8, "batch_tokens": 512, "optimizer": {"adamw": {"lr": 1e-2}}},
}


def run(folder: Path, layers: Sequence[dict[str, Any]], **options: Any) -> Path:
    recipe = load([RUN, *layers], [f"run={folder}"])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
    return folder


def assert_resumes(
    layers: Sequence[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str
) -> None:
    """A run stopped in its fourth iteration and resumed has the metrics, weights and `files` of a whole one."""
    whole = run(folder / "whole", layers)
    plain = Trainer.iterate

    def stops(self: Trainer) -> dict[str, float]:
        if self.step == 3:
            raise KeyboardInterrupt
        return plain(self)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "iterate", stops)
        run(folder / "parts", layers)
    parts = run(folder / "parts", layers, resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    for name in ("main.safetensors", *files):
        one, other = (sorted((place / "checkpoints").iterdir())[-1] / name for place in (parts, whole))
        assert one.read_bytes() == other.read_bytes(), name
