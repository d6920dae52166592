"""A run that is killed leaves no process behind: (1) worker processes whose environments hang in C and block all
signals; (2) the command of an outside agent that ignores SIGTERM, and what it has started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.extras import needs
from tests.training.conftest import ECHO

GATEWAY = needs("openai", "fastapi", "uvicorn", "trl")
if not GATEWAY.args[0]:
    from tests.chat.conversations import policy_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its owner has ended")
HANGS = """
import ctypes, os, signal
from palaestra.testing import EchoEnvironment

class World(EchoEnvironment):
    def step(self, actions):
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        open(f"{os.environ['PIDS']}/{os.getpid()}", "w").close()
        ctypes.PyDLL(None).sleep(600)  # no other thread runs meanwhile
        return super().step(actions)
"""
IGNORES = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
for number in (os.getpid(), child.pid):
    open(f"{os.environ['PIDS']}/{number}", "w").close()
time.sleep(600)
"""


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of files that are named after processes. What is still there at the end is killed."""
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("PIDS", str(folder))
    yield folder
    for number in map(int, os.listdir(folder)):
        if alive(number):
            os.kill(number, signal.SIGKILL)


def alive(number: int) -> bool:
    """Whether a process runs: nobody may have asked for the status of one that has ended."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def killed(recipe: dict[str, Any], folder: Path, pids: Path, count: int) -> list[int]:
    """Start a run, kill it when `count` processes have told their numbers, and return all processes below it."""
    (folder / "recipe.yaml").write_text(json.dumps(recipe | {"run": str(folder / "run")}))
    command = [sys.executable, "-m", "palaestra", "train", str(folder / "recipe.yaml"), "--quiet"]
    with (folder / "said").open("w") as said:
        run = subprocess.Popen(command, stdout=said, stderr=said)
    until = time.monotonic() + 120
    while len(os.listdir(pids)) < count:
        assert run.poll() is None and time.monotonic() < until, (folder / "said").read_text()
        time.sleep(0.05)
    below = {child.pid for child in psutil.Process(run.pid).children(recursive=True)}
    below |= {int(name) for name in os.listdir(pids)}
    run.kill()
    run.wait()
    return sorted(below)


def assert_gone(below: list[int]) -> None:
    until = time.monotonic() + 5
    while left := [number for number in below if alive(number)]:
        assert time.monotonic() < until, [psutil.Process(number).cmdline() for number in left]
        time.sleep(0.05)


def test_1_workers_that_hang(tmp_path: Path, pids: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    world = {"environment": f"{tmp_path / 'hangs.py'}:World", "warm_start": None}
    workers = {"rollout": ECHO["rollout"] | {"workers": 2, "worker_kind": "process", "stuck_seconds": None}}
    below = killed(ECHO | world | workers, tmp_path, pids, 2)
    assert len(below) >= 3, "the workers, and the process that has started them"
    assert_gone(below)


@GATEWAY
def test_2_a_command(tmp_path: Path, pids: Path) -> None:
    policy_of("qwen3", tmp_path / "model")
    (tmp_path / "agent.py").write_text(IGNORES)
    (tmp_path / "questions.jsonl").write_text("\n".join(json.dumps({"prompt": f"question {n}"}) for n in range(9)))
    (tmp_path / "rewards.py").write_text("def even(completion):\n    return float(len(completion) % 2)\n")
    recipe = {
        "environment": {
            "dataset": {"path": str(tmp_path / "questions.jsonl"), "reward": f"{tmp_path}/rewards.py:even"}
        },
        "program": {"outside_agent": {"command": [sys.executable, str(tmp_path / "agent.py")]}},
        "policies": {"main": {"policy": {"language": {"model": str(tmp_path / "model")}}}},
        "agents": {"*": {"policy": "main", "context": "full_history"}},
        "advantage": "grpo",
        "rollout": {"tasks": 1, "group": 2, "response_tokens": 8},
        "training": {"iterations": 1},
        "evaluation": {"tasks": 1},
    }
    assert_gone(killed(recipe, tmp_path, pids, 2))
