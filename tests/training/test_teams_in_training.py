"""Teams in whole runs:

1. A team with critics learns from episodes that are cut off, also where a role had nothing left to answer.
2. An update that is left out because a policy waits its turn counts neither as one nor as one without signal.
3. With several policies every number of an update carries its policy's name.
4. After a resume the run knows which roles have acted before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train

NETWORK = {"policy": {"network": {"hidden": [8]}}}
TEAM: dict[str, Any] = {
    "name": "team",
    "seed": 1,
    "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
    "policies": {"one": NETWORK, "two": NETWORK},
    "agents": {"a": {"policy": "one"}, "b": {"policy": "two"}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 2},
    "advantage": {"dr_mas": {}},
    "optimizer": {"adamw": {"lr": 0.01}},
    "training": {"iterations": 4, "threads": 1},
    "evaluation": {"tasks": 2},
}
Run = Callable[..., Path]


@pytest.fixture
def team(tmp_path: Path) -> Run:
    """Trains the team with changes to the recipe, returns the folder."""

    def start(*overrides: str, whole: Any = None, **options: bool) -> Path:
        recipe = load([whole or TEAM], [f"run={tmp_path / 'run'}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / "run"

    return start


def lines(folder: Path) -> list[dict[str, Any]]:
    return MetricsLog(folder).metrics.read()


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_1_critics(team: Run, turns: int) -> None:
    roles = {"solver": {"policy": "one"}, "verifier": {"policy": "two"}}
    layer = {"environment": {"echo": {"turns": 4}}, "program": {"solver_verifier": {"rounds": 1}}, "agents": roles}
    critics = {"advantage": {"ppo": {}}, "regularizers": ["value"]}
    rest = {name: TEAM[name] for name in TEAM if name not in (*layer, *critics)}
    folder = team(f"rollout.max_turns={turns}", whole=rest | layer | critics)
    for line in lines(folder):
        assert all(np.isfinite(line[f"policy/{name}/value/loss"]) for name in ("one", "two"))


def test_2_waiting(team: Run) -> None:
    waits = ["policies.one.every=3", "policies.two.every=3"]
    folder = team(*waits, "training.iterations=7", "training.max_empty=2", "training.minibatches=1")
    assert [line["updates"] for line in lines(folder)] == [0, 0, 1, 1, 1, 2, 2]


def test_3_names(team: Run) -> None:
    line = lines(team("training.minibatches=2"))[-1]
    assert {f"policy/{name}/mismatch/kl" for name in ("one", "two")} <= set(line) and "mismatch/kl" not in line


def test_4_resume(team: Run, tmp_path: Path) -> None:
    program = tmp_path / "half.py"
    program.write_text(HALF)
    options = [f"program={program}:half", "training.max_empty=2", "training.checkpoint_every=1"]
    team(*options, "training.iterations=2")
    folder = team(*options, "training.iterations=4", resume=True)
    assert [line["agent/b/active"] for line in lines(folder)] == [1.0, 0.0, 0.0, 0.0]


HALF = '''
from palaestra.rollout.programs import acted_by

@acted_by("a", "b")
async def half(episode):
    """In the first iteration both act, later a alone."""
    result = await episode.reset()
    while result.observations:
        names = ["a", "b"] if episode.play.group.startswith("000000-") else ["a"]
        actions = {name: await episode.agents[name].act(result.observations[name]) for name in names}
        result = await episode.step(actions)
'''
