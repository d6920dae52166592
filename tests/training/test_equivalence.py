"""Configurations that must give the same curve, all held against one recorded on a CPU.

1. The recorded curve: the same recipe gives the same numbers as when it was recorded.
2. A run that is stopped and resumed has the same metrics and weights, byte for byte.
3. Micro-batches change nothing but rounding: all samples at once, or one by one.
4. Worker threads and processes change nothing.
5. Another seed gives another curve (the comparison can fail).
6. A run killed by SIGKILL at a random moment and resumed equals one that was never stopped, byte for byte.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.conftest import ECHO, curve, final_weights, recorded, stopped_before

Run = Callable[..., Path]
COMPARED = ("reward/mean", "turns/mean", "policy/loss", "policy/entropy", "policy/grad_norm", "advantage/std")


def assert_same_curve(one: list[dict[str, float]], other: list[dict[str, float]], *, within: float = 1e-4) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        for key in COMPARED:
            assert (key in left) == (key in right), key
            if key in left:
                assert left[key] == pytest.approx(right[key], rel=within, abs=within), (key, left["step"])


def test_1_recorded_curve(echo: Run) -> None:
    assert_same_curve(curve(echo("a")), recorded("echo_curve"))


def test_2_resume_is_bit_for_bit(echo: Run) -> None:
    whole = echo("whole")
    with stopped_before(3):
        echo("parts")
    parts = echo("parts", resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert final_weights(parts) == final_weights(whole)


@pytest.mark.parametrize("budget", [1, 100_000])
def test_3_micro_batches(echo: Run, budget: int) -> None:
    assert_same_curve(curve(echo("a", f"training.token_budget={budget}")), recorded("echo_curve"))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_4_workers(echo: Run, kind: str) -> None:
    folder = echo("a", "rollout.workers=2", f"rollout.worker_kind={kind}")
    assert_same_curve(curve(folder), recorded("echo_curve"))


def test_5_another_seed_differs(echo: Run) -> None:
    with pytest.raises(AssertionError):
        assert_same_curve(curve(echo("a", "seed=4")), recorded("echo_curve"))


@pytest.mark.slow
def test_6_sigkill_at_a_random_moment(tmp_path: Path, echo: Run) -> None:
    longer = ["training.iterations=30", "training.checkpoint_every=4"]
    whole = echo("whole", *longer)
    recipe = tmp_path / "echo.json"
    recipe.write_text(json.dumps(ECHO))
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "palaestra", "train", str(recipe), *longer, f"run={folder}", "--quiet"]
    process = subprocess.Popen(command)
    while not (folder / "checkpoints").exists() and process.poll() is None:
        time.sleep(0.05)
    moment = random.uniform(0.0, 4.0)
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*command, "--resume"], check=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), (name, moment)
    assert final_weights(folder) == final_weights(whole), moment
