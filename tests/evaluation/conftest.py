"""What tests of this folder share: made episodes and made run folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Failure, Observation, Step, StopReason, Task, Trajectory
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.store.metrics import MetricsLog

Episodes = Callable[..., Trajectory]
Runs = Callable[..., RunFolder]


def make_episode(
    outcome: float | None = 1.0,
    *,
    turns: int = 2,
    returns: Mapping[str, float] | None = None,
    failed: str = "",
    stop: StopReason = StopReason.COMPLETED,
    invalid: int = 0,
    text: str = "A door.",
) -> Trajectory:
    steps = [
        Step(
            agent="agent",
            turn=turn,
            observation=Observation(text=text),
            action=Action(text="open", tokens=np.array([1, 2], np.int32)),
            info={"invalid": 1.0} if turn < invalid else {},
        )
        for turn in range(turns)
    ]
    return Trajectory(
        task=Task(env="rooms", seed=0),
        group="g",
        steps=steps,
        outcome=None if failed else outcome,
        returns=dict(returns or {"agent": outcome or 0.0}),
        stop=StopReason.ERROR if failed else stop,
        error=Failure(boundary=failed, message="it <broke>") if failed else None,
    )


def make_run(
    path: Path, heights: Sequence[float], *, seed: int = 0, width: int = 100, extra: Mapping[str, Any] | None = None
) -> RunFolder:
    """A run whose evaluation after iteration k was heights[k]; `width` environment steps an iteration."""
    folder = RunFolder.create(path)
    folder.write_json(RECIPE, {"seed": {"value": seed, "origin": "command line"}} | dict(extra or {}))
    log = MetricsLog(folder)
    for step, height in enumerate(heights):
        if step:
            log.append(step, {"reward/mean": height, "environment_steps": width * step, "updates": 2 * step})
        log.append_evaluation(step, {"eval/rooms/success": height, "eval/rooms/tasks": 8})
    return folder


@pytest.fixture
def episode() -> Episodes:
    return make_episode


@pytest.fixture
def run() -> Runs:
    return make_run
