"""SIGKILL of `palaestra train` leaves no process behind: (1) worker processes end, also those that hang in a call of C
that blocks signals and lets no other Python code run; (2) a command that is an outside agent ends, also if it ignores
SIGTERM, and so do the processes that it has started; (3) a command may tidy up at SIGTERM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commands.conftest import SMALL
from tests.extras import needs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that hangs")

ROOT = Path(__file__).parents[2]
STARTS_S, ENDS_S = 120.0, 5.0
STUCK = '''
import ctypes, os, signal
from pathlib import Path
from palaestra.testing.fakes import EchoEnvironment


class Stuck(EchoEnvironment):
    """Its first step hangs in C, holds the lock of Python, and blocks all signals but SIGKILL."""

    def step(self, actions):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        (Path(__file__).parent / f"begun-{os.getpid()}").touch()
        while True:
            ctypes.PyDLL(None).sleep(600)
'''
STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
input()  # the task
child = subprocess.Popen(["sleep", "600"])  # it ignores SIGTERM, too
for pid in (os.getpid(), child.pid):
    open(f"begun-{pid}", "w").close()
time.sleep(600)
"""
TIDY = """
import os, signal, sys, time
def end(*_):
    open("tidied", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, end)
input()
open(f"begun-{os.getpid()}", "w").close()
time.sleep(600)
"""


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. One whose id another process has got does not."""
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    """The processes that a test has seen. None outlives it."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        if process.is_running():
            process.kill()


def killed(folder: Path, recipe: Mapping[str, Any], count: int, started: list[psutil.Process]) -> None:
    """Train until `count` processes have said that they run, kill the trainer, and wait for the end of the others.

    Raises: AssertionError, if one of them still runs after five seconds.
    """
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    command = [sys.executable, "-m", "palaestra", "train", "recipe.yaml", "run=run", "--quiet", "--trust"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "said").open("w") as said:
        trainer = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
    try:
        began = time.monotonic()
        while len(begun := {int(path.name.partition("-")[2]) for path in folder.glob("begun-*")}) < count:
            assert trainer.poll() is None and time.monotonic() - began < STARTS_S, (folder / "said").read_text()
            time.sleep(0.05)
        started += psutil.Process(trainer.pid).children(recursive=True)
        assert begun <= {one.pid for one in started}
    finally:
        trainer.kill()
        trainer.wait()
    began = time.monotonic()
    while (left := living(started)) and time.monotonic() - began < ENDS_S:
        time.sleep(0.05)
    assert not left


def test_1_workers_that_hang(tmp_path: Path, started: list[psutil.Process]) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    rollout = {**SMALL["rollout"], "workers": 2, "worker_kind": "process"}
    killed(tmp_path, {**SMALL, "environment": {"stuck.py:Stuck": {"turns": 2}}, "rollout": rollout}, 2, started)


def recipe_of(folder: Path, agent: str) -> dict[str, Any]:
    """A run with a tiny random model, whose episodes a command plays."""
    from tests.chat.conversations import policy_of

    policy_of("qwen3", folder / "model")
    (folder / "agent.py").write_text(agent)
    rows = (json.dumps({"prompt": f"question {n}", "answer": str(n)}) for n in range(40))
    (folder / "questions.jsonl").write_text("\n".join(rows))
    (folder / "rewards.py").write_text("def none(completion):\n    return 0.0\n")
    return {
        "environment": {"dataset": {"path": "questions.jsonl", "reward": "rewards.py:none"}},
        "program": {"outside_agent": {"command": [sys.executable, "agent.py"]}},
        "policies": {"main": {"policy": {"language": {"model": "model"}}}},
        "agents": {"*": {"policy": "main", "context": "full_history"}},
        "advantage": "grpo",
        "optimizer": {"adamw": {"lr": 0.01}},
        "rollout": {"tasks": 1, "group": 2, "response_tokens": 8},
        "training": {"iterations": 2},
        "evaluation": {"tasks": 1},
    }


COMMANDS = needs("openai", "fastapi", "uvicorn", "trl")


@COMMANDS
def test_2_commands_that_ignore_sigterm(tmp_path: Path, started: list[psutil.Process]) -> None:
    killed(tmp_path, recipe_of(tmp_path, STUBBORN), 2, started)


@COMMANDS
def test_3_commands_that_tidy_up(tmp_path: Path, started: list[psutil.Process]) -> None:
    """As the client of Docker does, which stops its container."""
    killed(tmp_path, recipe_of(tmp_path, TIDY), 1, started)
    assert (tmp_path / "tidied").exists()
