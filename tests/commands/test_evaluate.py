"""`palaestra eval`: (1) a run folder, its newest or another checkpoint; (2) scripted policies; (3) faults; (4) the
episodes are kept; (5) with `--json`, the standard output is one JSON object, whatever code of the user, programs that
it starts and functions of C print, also while Python ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.store.episodes import EpisodeLog
from tests.commands.conftest import Command

ROOT = Path(__file__).parents[2]
LAST = re.compile(r"success \d\.\d{3} on 4 tasks of the split eval")


def test_1_run_folder(folder: Path, palaestra: Command) -> None:
    trained = palaestra("train", folder, "--resume").out[-1]
    done = palaestra("eval", folder)
    assert done.code == 0 and LAST.fullmatch(done.out[-1])
    assert done.out[-1].split()[1] == trained.split()[3]  # after training
    assert LAST.fullmatch(palaestra("eval", folder, "--checkpoint", 1).out[-1])
    assert "(Wilson, " in done.out[-2]


def test_1_overrides(folder: Path, palaestra: Command) -> None:
    assert palaestra("eval", folder, "evaluation.tasks=6").out[-1].endswith("on 6 tasks of the split eval")


def test_2_expert(recipe: Path, palaestra: Command) -> None:
    assert palaestra("eval", recipe, "--policy", "expert").out[-1] == "success 1.000 on 4 tasks of the split eval"
    done = palaestra("eval", recipe, "--policy", "random")
    assert LAST.fullmatch(done.out[-1]) and not Path("runs").exists()


def test_2_failed_episodes_are_said(recipe: Path, palaestra: Command) -> None:
    done = palaestra("eval", recipe, "--policy", "expert", "environment.echo.raise_at=0")
    assert "4 of 4 episodes failed (environment 4) and count as failures. The first:" in done.out
    assert "  environment echo, step" in done.out and done.out[-1] == "success 0.000 on 4 tasks of the split eval"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs/small", "--checkpoint", 77), "no checkpoint of iteration 77"),
        (("runs/small", "--policy", "exprt"), "no policy is called `exprt`"),
        (("runs/absent",), "run=runs/absent\n\n  there is no such folder.\n  Candidates: runs/small."),
    ],
)
def test_3_faults(folder: Path, palaestra: Command, arguments: tuple[object, ...], message: str) -> None:
    done = palaestra("eval", *arguments)
    assert done.code == 2 and message in done.err


def test_4_episodes(recipe: Path, palaestra: Command) -> None:
    assert palaestra("eval", recipe, "--policy", "expert", "--episodes", "kept/all").code == 0
    rows = EpisodeLog("kept/all").read()
    assert len(rows) == 4 and all(trajectory.outcome == 1 for _, _, trajectory in rows)
    done = palaestra("eval", recipe, "--policy", "random", "--episodes", "kept/all")
    assert done.code == 2 and "it has episodes already" in done.err
    assert len(EpisodeLog("kept/all").read()) == 4


LOUD = """
import atexit, ctypes, os, sys
from palaestra.envs.probes.rooms import Rooms

atexit.register(lambda: print("at the end", flush=True))

class Loud(Rooms):
    def step(self, actions):
        print("printed")
        sys.__stdout__.write("written\\n")
        os.write(1, b"by its number\\n")
        os.system("echo by a program")
        ctypes.CDLL(None).puts(b"by C")
        return super().step(actions)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_5_json_alone(tmp_path: Path, workers: int) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    words = ["setups/rooms-tiny.yaml", "grpo/method.yaml", "environment=loud.py:Loud", "evaluation.tasks=2"]
    words += ["rollout.runner=episodes", f"rollout.workers={workers}", *["rollout.worker_kind=process"][:workers]]
    command = [sys.executable, "-m", "palaestra", "eval", *words, "--policy", "random", "--json"]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks"] == 2
    for line in ("printed", "written", "by its number", "by a program", "by C", "at the end"):
        assert line in done.stderr.splitlines()
