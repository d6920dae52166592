"""`palaestra compare`: (1) complete runs are not run again, and JSON, text and plot are written; (2) runs of another
recipe are refused; (3) an arm that cannot run stops everything before the start; (4) stopped in the middle and started
again, in processes of their own; (5) an arm may have a name and overrides of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palaestra.commands.compare import _arms
from tests.commands.conftest import Command

METHODS = ("one.yaml", "two.yaml")
COMPARE = ("compare", "small.yaml", *METHODS, "--seeds", 2, "--out", "out")


@pytest.fixture
def methods(recipe: Path) -> None:
    Path("one.yaml").write_text("advantage: {grpo: {scale: none}}")
    Path("two.yaml").write_text("advantage: rloo")


@pytest.fixture
def trained(methods: None, palaestra: Command) -> None:
    """All four runs, as their own processes would have left them."""
    for file in METHODS:
        for seed in (1, 2):
            folder = f"out/runs/{Path(file).stem}/seed-{seed}"
            assert palaestra("train", "small.yaml", file, f"seed={seed}", f"run={folder}", "--quiet").code == 0


def test_1_complete_runs(trained: None, palaestra: Command) -> None:
    done = palaestra(*COMPARE, "--reference", "two")
    assert done.code == 0 and "4 of 4 runs are complete" in done.err
    assert "eval/echo/success at 64 environment_steps" in done.out[0]
    assert Path("out/comparison.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads(Path("out/comparison.json").read_text())
    assert list(written["arms"]) == ["one", "two"]
    assert "one" in Path("out/comparison.txt").read_text()


def test_2_runs_of_another_recipe(trained: None, palaestra: Command) -> None:
    done = palaestra(*COMPARE, "training.iterations=3")
    assert done.code == 2
    assert "out/runs/one/seed-1" in done.err and "training.iterations 2 -> 3" in done.err and "--out" in done.err


def test_3_an_arm_that_cannot_run(methods: None, palaestra: Command) -> None:
    Path("two.yaml").write_text("advantage: gigp")
    done = palaestra(*COMPARE)
    assert done.code == 2 and "Candidates: gigpo" in done.err and not Path("out").exists()


def test_3_arms_of_the_same_name(methods: None, palaestra: Command) -> None:
    Path("other").mkdir()
    Path("other/one.yaml").write_text("advantage: rloo")
    done = palaestra("compare", "small.yaml", "one.yaml", "other/one.yaml")
    assert done.code == 2 and "two arms have the same name" in done.err


def test_3_systems_are_named_by_their_folders(recipe: Path) -> None:
    arms = _arms(["grpo/method.yaml", "arpo/aepo.yaml", "gigpo/recipe.yaml", "method.yaml"], [])
    assert list(arms) == ["grpo", "aepo", "gigpo", "method"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small.yaml", "training.iterations=3"), "no method file is given"),
        (("small.yaml", "one.yaml", "--parallel", 0), "'--parallel': Input should be greater than or equal to 1"),
        (("small.yaml", "one.yaml", "--seeds", 0), "'--seeds': Input should be greater than or equal to 1"),
    ],
)
def test_3_nothing_to_do(methods: None, palaestra: Command, arguments: tuple[object, ...], message: str) -> None:
    done = palaestra("compare", *arguments)
    assert done.code == 2 and message in done.err


def _interrupted(command: list[str], environment: dict[str, str], *, begun: int) -> str:
    """Press Ctrl-C once so many runs have metrics. Returns what the command said."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while len(list(Path("out/runs").glob("*/seed-*/metrics.jsonl"))) < begun and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    return message


@pytest.mark.slow
def test_4_stopped_in_the_middle(methods: None) -> None:
    palaestra, many = [sys.executable, "-m", "palaestra"], "training.iterations=60"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # A run that Ctrl-C stops has time to end in order, unlike the runs of a comparison that is stopped.
    alone = [*palaestra, "train", "small.yaml", "one.yaml", many, "seed=1", "run=out/runs/one/seed-1"]
    _interrupted(alone, environment, begun=1)
    command = [*palaestra, *map(str, COMPARE), many, "--parallel", "2"]
    message = _interrupted(command, environment, begun=2)
    assert "0 of 4 runs are complete" in message and "the same command continues where it stopped" in message
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    runs = list(Path("out/runs").glob("*/seed-*"))
    assert len(runs) == 4 and all((run / "report.html").exists() for run in runs)
    assert {len((run / "metrics.jsonl").read_text().splitlines()) for run in runs} == {60}


def test_5_named_arms(methods: None, palaestra: Command) -> None:
    arms = ("--arm", "row: one.yaml advantage.grpo.unit=row", "--arm", "one: one.yaml")
    for name, own in (("row", ["advantage.grpo.unit=row"]), ("one", [])):
        folder = f"out/runs/{name}/seed-1"
        assert palaestra("train", "small.yaml", "one.yaml", *own, "seed=1", f"run={folder}", "--quiet").code == 0
    done = palaestra("compare", "small.yaml", *arms, "--seeds", 1, "--out", "out")
    assert done.code == 0 and "2 of 2 runs are complete" in done.err
    assert set(json.loads(Path("out/comparison.json").read_text())["arms"]) == {"row", "one"}
    assert "needs a name" in palaestra("compare", "small.yaml", "--arm", "one.yaml").err
    assert "same name" in palaestra("compare", "small.yaml", "one.yaml", "--arm", "one: two.yaml").err
    assert "no method file" in palaestra("compare", "small.yaml").err
