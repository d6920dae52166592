"""A run of a pretrained model that is stopped at ten moments of its time, by each of three signals: (1) by Ctrl-C and
SIGTERM it ends with the signal's status, no finished iteration is lost, and the report can be read; (2) by a kill at
most the work since the last checkpoint is lost. Resumed, it has the logs and the weights of a run that nothing stopped.
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
from typing import Any

import pytest

from palaestra.models.pretrained import located
from palaestra.store.folder import RunFolder
from tests.commands.test_stopping import environment, kept

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ITERATIONS, EVERY, MOMENTS = 4, 2, 10
LOGS = ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl")
BEGIN_S = 0.3  # before, Python itself has not started


def recipe() -> dict[str, Any]:
    """The second example of the README, with fewer and shorter replies."""
    return {
        "extends": "models/smollm2-words.yaml",
        "name": "stopped",
        "dtype": "float32",
        "policies": {"main": {"policy": {"language": {"model": located("SmolLM2-135M-Instruct")}}}},
        "rollout": {"tasks": 2, "group": 2, "response_tokens": 4},
        "training": {"iterations": ITERATIONS, "threads": 1, "checkpoint_every": EVERY},
        "evaluation": {"tasks": 2},
    }


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "palaestra", "train", "stopped.yaml", "--quiet", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def contents(run: Path) -> dict[str, bytes]:
    """The logs, and the files of the last checkpoint. Its checksums also note how long the logs were. Where the signal
    came in the last evaluation, the checkpoint was written before that; so only the checksums of files are compared."""
    last = run / f"checkpoints/step-{ITERATIONS:06}"
    files = [*(run / name for name in LOGS), *(path for path in sorted(last.rglob("*")) if path.is_file())]
    found = {str(path.relative_to(run)): path.read_bytes() for path in files}
    sums = str((last / "checksums.json").relative_to(run))
    return found | {sums: json.dumps(json.loads(found[sums])["files"]).encode()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """What the run that nothing stopped has written, and the seconds until its result."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "stopped.yaml").write_text(json.dumps(recipe()))
    began, run = time.time(), folder / "runs/stopped"
    process = started(folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return contents(run), (run / "result.json").stat().st_mtime - began


def logged(run: Path) -> int:
    """The iterations whose line is in the log."""
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ten_moments(
    whole: tuple[dict[str, bytes], float],
    number: signal.Signals,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    expected, seconds = whole
    draw, trials, stopped = random.Random(int(number)), 0, 0
    while stopped < MOMENTS:
        assert trials < 2 * MOMENTS, "the runs end again and again before the signal"
        folder = tmp_path / str(trials)
        trials += 1
        folder.mkdir()
        (folder / "stopped.yaml").write_text(json.dumps(recipe()))
        began, run, process = time.time(), folder / "runs/stopped", started(folder)
        try:
            process.wait(BEGIN_S + (stopped + draw.random()) / MOMENTS * (seconds - BEGIN_S))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert "Traceback" not in errors, errors
        if (run / "result.json").exists():  # all was done before the signal, so the machine is faster than it was
            assert process.returncode in (0, -signal.SIGKILL)
            seconds = min(seconds, (run / "result.json").stat().st_mtime - began)
        else:
            stopped += 1
            check_stopped(process.returncode, number, run)
        again = started(folder, *(["--resume"] if RunFolder(run).holds_a_run else []))
        _, errors = again.communicate(timeout=600)
        assert again.returncode == 0, errors
        assert contents(run) == expected
        assert f"Iteration {ITERATIONS} of {ITERATIONS}, ended." in (run / "report.html").read_text()
    record_property("trials", stopped)


def check_stopped(status: int, number: signal.Signals, run: Path) -> None:
    """Check the status, the iterations that are kept and the report of a stopped run."""
    step, done = kept(run), logged(run)
    if number == signal.SIGKILL:
        assert status == -number and done - (step or 0) <= EVERY
        return
    assert status in (128 + number, -number)
    if step is None:
        assert done == 0
    else:
        assert step >= done and "stopped by" in (run / "report.html").read_text()
