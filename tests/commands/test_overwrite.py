"""`palaestra train --overwrite`: (1) a recipe that cannot begin leaves the former run as it was, whatever fails; (2) so
does a kill before the new run has a checkpoint, and Ctrl-C; (3) after the first checkpoint a stopped run is the new
one; (4) a run that has begun replaces the former one, and nothing of that is left.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.commands.conftest import Command
from tests.commands.test_stopping import at

ENVIRONMENT = """
from palaestra.testing.fakes import EchoEnvironment as Echo

class InConstructor(Echo):
    def __init__(self):
        raise OSError("the server is down")

class InReset(Echo):
    def reset(self, task):
        raise OSError("the server is down")

class InTraining(Echo):
    def reset(self, task):
        if task.split == "train":
            raise OSError("the server is down")
        return super().reset(task)

class Ends(Echo):
    def __init__(self):
        raise SystemExit(0)
"""
CANNOT_BEGIN = {
    "a key that does not exist": ["rollout.groop=4"],
    "a part that does not exist": ["advantage=grop"],
    "roles without a policy": ["agents.*.policy=other"],
    "a model that is not there": ["policies.main.policy={language: {model: no/such-model}}"],
    "a folder that is no network": ["policies.main.load=broken"],
    "a device that is not there": ["device=cuda:7"],
    "a warm start": ["environment=own.py:InReset", "warm_start.episodes=4"],
    "the constructor": ["environment=own.py:InConstructor"],
    "a constructor that exits": ["environment=own.py:Ends"],
    "each episode": ["environment=own.py:InReset"],
    "each episode of training": ["environment=own.py:InTraining"],
    "an estimator": ["advantage=own_parts.py:broken"],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def former(folder: Path) -> dict[str, bytes]:
    """A run in runs/small, and what is in its folder."""
    Path("own.py").write_text(ENVIRONMENT)
    Path("own_parts.py").write_text("def broken(table):\n    raise ArithmeticError('no')\n")
    Path("broken").mkdir()
    (folder / "notes.txt").write_text("mine")
    return contents(folder)


@pytest.mark.parametrize("fault", CANNOT_BEGIN)
def test_1_what_cannot_begin(former: dict[str, bytes], folder: Path, palaestra: Command, fault: str) -> None:
    done = palaestra("train", "small.yaml", "--overwrite", *CANNOT_BEGIN[fault])
    assert done.code == 2 and not done.out and "Traceback" not in done.err
    assert contents(folder) == former
    assert palaestra("eval", folder).code == 0


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("training.start:build_setup", signal.SIGKILL),
        ("training.start:build_setup", signal.SIGINT),
        ("training.start:build_setup", signal.SIGTERM),
        ("training.saving:save_checkpoint", signal.SIGKILL),  # the other signals wait for the checkpoint
    ],
)
def test_2_stopped_before_the_first_checkpoint(
    former: dict[str, bytes], folder: Path, palaestra: Command, how: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if not child:
        at(f"palaestra.{moment}", 1, lambda: os.kill(os.getpid(), how), monkeypatch)
        os._exit(palaestra("train", "small.yaml", "--overwrite", "seed=7").code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (-how if how == signal.SIGKILL else 128 + how)
    assert palaestra("eval", folder).code == 0  # after a kill this puts the former run back
    assert contents(folder) == former


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_3_stopped_after_the_first_checkpoint(
    former: dict[str, bytes], folder: Path, palaestra: Command, how: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if not child:
        at("palaestra.training.loop:prepare", 1, lambda: os.kill(os.getpid(), how), monkeypatch)
        os._exit(palaestra("train", "small.yaml", "--overwrite", "seed=7").code)
    os.waitpid(child, 0)
    assert palaestra("train", folder, "--resume", "--quiet").code == 0
    shutil.copytree(folder, "overwritten")
    assert palaestra("train", "small.yaml", "seed=7", "run=runs/whole", "--quiet").code == 0
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert Path("overwritten", name).read_bytes() == Path("runs/whole", name).read_bytes()
    assert Path("overwritten/notes.txt").read_text() == "mine" and not list(Path("overwritten").glob(".*"))


def test_4_replaced(former: dict[str, bytes], folder: Path, palaestra: Command) -> None:
    assert palaestra("train", "small.yaml", "--overwrite", "seed=7", "--quiet").code == 0
    after = contents(folder)
    assert after.keys() == former.keys() and after["metrics.jsonl"] != former["metrics.jsonl"]
    assert after["notes.txt"] == b"mine" and not list(folder.glob(".*"))
