"""`palaestra train`: (1) its last line; (2) what it leaves; (3) --dry-run and explain start nothing; (4) twice into one
folder is refused; (5) --resume of a finished run prints its result; (6) --resume before the first checkpoint begins
anew, and after memory ran out it goes on; (7) --resume with another value says so; (8) --quiet; (9) more iterations
than before; (10) a folder that another process trains into is refused, whoever asks, and may be evaluated; after that
process was killed it is free at once; (11) a device that the machine lacks is refused before anything is started, by
`eval` too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palaestra.models import devices
from palaestra.training.loop import Trainer
from tests.commands.conftest import Command

LAST = re.compile(r"success \d\.\d{3} -> \d\.\d{3} on 4 tasks of the split eval")


def test_1_last_line(recipe: Path, palaestra: Command) -> None:
    done = palaestra("train", recipe)
    assert done.code == 0 and LAST.fullmatch(done.out[-1])
    assert re.fullmatch(r"iteration 0: success 0\.\d{3}, 95 % interval 0\.\d{3} to 0\.\d{3}", done.out[0])
    assert "iteration 2/2" in done.err


def test_2_files(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"recipe.json", "metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl", "report.html"} <= names
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("arguments", [("train", "--dry-run"), ("explain",)])
def test_3_dry_run(recipe: Path, palaestra: Command, arguments: tuple[str, ...]) -> None:
    done = palaestra(arguments[0], recipe, "rollout.group=8", *arguments[1:])
    assert done.code == 0 and not Path("runs").exists()
    rows = {line.split()[0]: line.split() for line in done.out if line}
    assert rows["rollout.group"] == ["rollout.group", "8", "command", "line"]
    assert rows["rollout.tasks"][-1].startswith("small.yaml:")
    assert rows["rollout.temperature"][-1] == "default"


def test_4_twice(folder: Path, palaestra: Command) -> None:
    done = palaestra("train", "small.yaml")
    assert done.code == 2 and not done.out
    assert all(way in done.err for way in ("a run is already there", "--resume", "run=<folder>", "--overwrite"))
    assert "Traceback" not in done.err
    assert palaestra("train", "small.yaml", "--overwrite").code == 0


@pytest.mark.parametrize("source", ["small.yaml", "runs/small"])
def test_5_resume_of_a_finished_run(folder: Path, palaestra: Command, source: str) -> None:
    before = (folder / "metrics.jsonl").read_bytes()
    done = palaestra("train", source, "--resume")
    assert done.code == 0 and LAST.fullmatch(done.out[-1])
    assert "resumed runs/small at iteration 2" in done.err and "changed" not in done.err
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_6_resume_before_the_first_checkpoint(
    recipe: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "evaluate", stops)
        done = palaestra("train", recipe)
    assert done.code == 130 and "`--resume` continues" in done.err
    shutil.rmtree("runs/small/checkpoints")  # as if it had been stopped even before that
    assert palaestra("train", recipe, "--resume").code == 0
    assert palaestra("train", recipe, "run=runs/whole").code == 0
    assert Path("runs/small/metrics.jsonl").read_bytes() == Path("runs/whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("ask", [lambda: torch.empty(2**50), lambda: bytearray(2**60), lambda: raising(errno.ENOMEM)])
def test_6_memory_runs_out(
    recipe: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    whole = Trainer.iterate

    def asks(self: Trainer) -> dict[str, float]:
        if self.step == 1:
            ask()
        return whole(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "iterate", asks)
        done = palaestra("train", recipe)
    assert done.code == 2 and "Traceback" not in done.err
    assert all(words in done.err for words in ("memory\n\n", "`training.token_budget`", "`--resume` continues"))
    assert palaestra("train", recipe, "--resume").code == 0
    assert palaestra("train", recipe, "run=runs/whole").code == 0
    assert Path("runs/small/metrics.jsonl").read_bytes() == Path("runs/whole/metrics.jsonl").read_bytes()


def raising(code: int) -> None:
    raise OSError(code, os.strerror(code))


def test_7_changed_values(folder: Path, palaestra: Command) -> None:
    done = palaestra("train", folder, "--resume", "training.iterations=3")
    assert "changed: training.iterations 2 -> 3" in done.err
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((folder / "recipe.json").read_text())["training.iterations"]["value"] == 3


def test_8_quiet(recipe: Path, palaestra: Command) -> None:
    done = palaestra("train", recipe, "--quiet")
    assert LAST.fullmatch(done.out[-1]) and not done.err


def test_9_fewer_iterations_end_with_an_evaluation(folder: Path, palaestra: Command) -> None:
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    (folder / "evaluations.jsonl").write_text(lines[0] + "\n")  # as if it had been stopped before its last evaluation
    assert palaestra("train", folder, "--resume").code == 0
    assert (folder / "evaluations.jsonl").read_text().splitlines() == lines


@pytest.mark.slow
def test_10_one_process_a_folder(recipe: Path, palaestra: Command) -> None:
    options = ["run=runs/busy", "training.iterations=100000", "rollout.workers=1", "rollout.worker_kind=process"]
    command = [sys.executable, "-m", "palaestra", "train", str(recipe), *options, "--quiet"]
    first = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while first.poll() is None and not list(Path("runs/busy").glob("checkpoints/step-*")):
            time.sleep(0.02)
        assert first.poll() is None
        for how in (["--resume"], ["--overwrite"], []):
            second = palaestra("train", recipe, "run=runs/busy", *how)
            assert second.code == 2 and not second.out
            assert "run=runs/busy" in second.err and "Traceback" not in second.err
            assert f"another run writes into this folder (process {first.pid})." in second.err
        first.send_signal(signal.SIGSTOP)
        checkpoints = Path("runs/busy/checkpoints")
        (checkpoints / ".step-999999.1.tmp").mkdir()
        assert palaestra("eval", "runs/busy").code == 0
        assert (checkpoints / ".step-999999.1.tmp").exists(), "what another process is writing is left alone"
    finally:
        first.kill()
        first.wait()
    steps = len(json_lines(Path("runs/busy/metrics.jsonl")))
    done = palaestra("train", "runs/busy", "--resume", f"training.iterations={steps + 2}")
    assert done.code == 0 and LAST.fullmatch(done.out[-1])
    assert not list(Path("runs/busy").rglob(".*")), "neither the lock nor what was half done is left"


def json_lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize(
    "arguments", [("train",), ("train", "--dry-run"), ("explain",), ("eval",), ("train", "--resume")]
)
def test_11_a_device_that_is_not_there(
    recipe: Path, palaestra: Command, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_count", lambda kind: 0)
    done = palaestra(arguments[0], recipe, "device=cuda", *arguments[1:])
    assert done.code == 2 and not done.out and not Path("runs").exists()
    assert "device: cuda" in done.err and "has no CUDA device" in done.err and "device=cpu" in done.err
    assert "Traceback" not in done.err
