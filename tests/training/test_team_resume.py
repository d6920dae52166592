"""A team of three with policies of their own, advantages per role, and calls that differ from episode to episode:
(1) killed in the middle of a run and resumed, it has the metrics, evaluations and weights of a run that was left alone,
byte for byte; (2) and there is something to compare: all three learn.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from palaestra.recipe import load
from palaestra.training.start import train

ROUTER = '''
"""What the verifier says decides who echoes; rewards are of no meaning, but there are some."""

from palaestra.registry import register
from palaestra.rollout.programs import acted_by


@register("program", "routed")
@acted_by("verifier", "searcher", "writer")
async def routed(episode):
    result = await episode.reset()
    while result.observations:
        (seen,) = result.observations.values()
        said = await episode.agents["verifier"].act(seen)
        who = "searcher" if sum(said.tokens) % 2 else "writer"
        action = await episode.agents[who].act(seen)
        episode.agents["verifier"].reward(0.01 * (who == "writer") + 0.001 * (said.tokens[0] % 7))
        episode.agents[who].reward(0.01 * (action.tokens[0] % 5))
        result = await episode.step({who: action})
'''
POLICY = {"policy": {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}}
ROLES = ("verifier", "searcher", "writer")


def recipe(folder: Path) -> Path:
    """Three small language policies in a team that is a file of its own."""
    (folder / "team.py").write_text(ROUTER)
    content: dict[str, Any] = {
        "name": "team",
        "seed": 4,
        "environment": {"echo": {"turns": 3}},
        "program": f"{folder / 'team.py'}:routed",
        "policies": dict.fromkeys(ROLES, POLICY),
        "agents": {role: {"policy": role, "context": "latest_only"} for role in ROLES},
        "rollout": {"tasks": 4, "group": 4, "max_turns": 8, "response_tokens": 2},
        "advantage": {"dr_mas": {"by": ["group", "agent"], "unit": "row"}},
        "optimizer": {"adamw": {"lr": 0.003}},
        "training": {"iterations": 8, "epochs": 2, "minibatches": 2, "checkpoint_every": 2, "threads": 1},
        "evaluation": {"tasks": 4, "every": 3},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content))
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_1_a_killed_team_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    written = recipe(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "palaestra", "train", str(written), f"run={killed}", "--quiet"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and len(lines(killed)) < 3:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL and len(lines(killed)) < 8, "it was killed in the middle"

    left_alone = load([str(written)], [f"run={whole}"])
    train(left_alone.settings, recipe=left_alone.to_json(), quiet=True)
    again = load([str(written)], [f"run={killed}"])
    train(again.settings, recipe=again.to_json(), resume=True, quiet=True)
    last = [f"checkpoints/step-000008/{role}.safetensors" for role in ROLES]
    for name in ("metrics.jsonl", "evaluations.jsonl", *last):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_2_all_three_learn(tmp_path: Path) -> None:
    plain = load([str(recipe(tmp_path))], [f"run={tmp_path / 'run'}", "training.iterations=2"])
    train(plain.settings, recipe=plain.to_json(), quiet=True)
    for line in lines(tmp_path / "run"):
        norms = [line[f"policy/{role}/grad_norm"] for role in ROLES]
        assert min(norms) > 0 and len(set(norms)) == 3, "all three learn, each from its own acts"
