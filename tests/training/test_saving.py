"""When a run writes: (1) a pace costs at most its share of the time; (2) checkpoints by number of iterations, by time,
and at the end; (3) a report that cannot be written ends no run; (4) progress lines are short, and say how fast and how
long; (5) a reader that goes away does not end the run.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palaestra.data.ranks import OneProcess
from palaestra.evaluation.panels import Evaluation
from palaestra.recipe import load
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import MetricsLog
from palaestra.training import saving
from palaestra.training.checkpoint import RunState
from palaestra.training.progress import WIDEST, Progress
from palaestra.training.saving import Keeper, Pace
from palaestra.training.settings import TrainingSettings


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "share", "takes"), [(60.0, 20.0, 1.0), (60.0, 20.0, 30.0), (1.0, 50.0, 0.5)])
def test_1_pace(seconds: float, share: float, takes: float) -> None:
    clock = Clock()
    pace, written = Pace(seconds, share, clock), 0.0

    def write() -> None:
        clock.now += takes

    while clock.now < 100_000:
        if pace.due:
            pace.run(write)
            written += takes
        clock.now += 0.5
    assert written > 0 and written / clock.now < 1.05 / share


def keeper(tmp_path: Path, **settings: Any) -> Keeper:
    folder = RunFolder.create(tmp_path / "run")
    return Keeper(folder, RunState({}), MetricsLog(folder), TrainingSettings(**settings), OneProcess())


def test_2_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_number = keeper(tmp_path, checkpoint_every=3)
    assert [step for step in range(1, 8) if by_number.due(step, ended=step == 7)] == [3, 6, 7]
    by_number.save(7, {})
    assert not by_number.due(7, ended=True) and by_number.saved == 7
    by_time = keeper(tmp_path / "b")
    assert not by_time.due(5, ended=False) and by_time.due(5, ended=True)
    monkeypatch.setattr(by_time._checkpoints, "_last", by_time._checkpoints.clock() - 61)
    assert by_time.due(5, ended=False)
    by_time.save(5, {})
    assert not by_time.due(6, ended=False)
    assert RunFolder(tmp_path / "b" / "run").checkpoint_steps() == [5]


def test_3_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = keeper(tmp_path, iterations=9)
    report = tmp_path / "run" / "report.html"
    made.report(2)
    assert not report.exists(), "it is not time yet"
    made.report(2, now=True)
    assert "Iteration 2 of 9, still running." in report.read_text()
    made.report(4, now=True, ended=", stopped by SIGTERM")
    assert "Iteration 4 of 9, stopped by SIGTERM." in report.read_text()
    (tmp_path / "run" / "metrics.jsonl").write_text("no json\n")
    made.report(5, now=True)
    assert "Iteration 4 of 9" in report.read_text()


def test_3_the_report_follows_the_run(echo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    plain = saving.write_report

    def write(folder: RunFolder, *, state: str) -> Path:
        log = folder.path / "metrics.jsonl"
        told.append((state, len(log.read_text().splitlines()) if log.exists() else 0))
        return plain(folder, state=state)

    monkeypatch.setattr(saving, "write_report", write)
    monkeypatch.setattr(saving, "REPORT", (0.0, 0.0))
    run = echo("run", "training.iterations=3", "evaluation.tasks=2")
    running = [(f"Iteration {step} of 3, still running.", step) for step in (1, 2)]
    assert [one for one in told if "running" in one[0]][-2:] == running
    assert told[-1] == ("Iteration 3 of 3, ended.", 3) and told[-1][0] in (run / "report.html").read_text()


METRICS = {"outcome/mean": 0.5, "reward/mean": 0.5, "turns/mean": 2.0, "tokens/mean": 20.0, "cut/mean": 0.25,
           "policy/entropy": 1.2345678, "policy/grad_norm": 0.123456, "mismatch/kl": 1.2e-9,
           "speed/tokens": 812.3}  # fmt: skip


def test_4_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("palaestra.training.progress.time", SimpleNamespace(monotonic=clock))
    with Progress(total=100) as progress:
        progress.begin(10)
        clock.now = 30.0
        progress.iteration(12, METRICS, {"time/rollout": 10.0, "time/update": 5.0})
        clock.now = 31.0
        progress.iteration(13, METRICS, {})
        clock.now = 7000.0
        progress.iteration(100, METRICS | {"cut/mean": 0.0, "tokens/mean": 2.0}, {"time/update": 1.0})
    warning, first, last = capsys.readouterr().err.splitlines()
    assert warning == (
        "iteration 12: 25 % of the responses were cut at the limit of tokens. "
        "Raise rollout.response_tokens (or that of the role)."
    )
    assert first == (
        "[0:30] iteration 12/100  outcome 0.5  turns 2  cut 25%  entropy 1.23  gradient 0.123"
        "  (812 tokens/s, 15.0 s, 22:00 left)"
    )
    assert last.startswith("[1:56:40] iteration 100/100") and "cut" not in last and last.endswith("(812 acts/s, 1.0 s)")
    assert len(first) < WIDEST + 80


def test_4_the_first_evaluation_is_no_iteration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("palaestra.training.progress.time", SimpleNamespace(monotonic=clock))
    evaluation = Evaluation(
        name="words", n=4, successes=None, success=None, returns=None, turns=1.0, stops={}, invalid=0.0
    )
    with Progress(total=3) as progress:
        progress.begin(0)
        clock.now = 100.0
        progress.evaluation(0, evaluation)
        clock.now = 110.0
        progress.iteration(1, METRICS, {})
    assert "0:20 left" in capsys.readouterr().err.splitlines()[-1]


def test_4_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    with Progress(total=4) as progress:
        progress.begin(0)
        progress.iteration(2, METRICS, {"time/rollout": 1.0, "time/update": 0.5})
        progress.note("a [/b] note")
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("tokens/s", "812", "left", "cut", "2/4", "a [/b] note"))


class Interrupted(io.StringIO):
    """A stream. The handler of a signal runs while its first text is written."""

    def __init__(self, handler: Callable[[], None]) -> None:
        super().__init__()
        self._handler: Callable[[], None] | None = handler

    def write(self, text: str) -> int:
        done = super().write(text)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler()
        return done


def test_4_a_signal_while_a_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress(total=2) as progress:
        stream = Interrupted(lambda: progress.note("Ctrl-C"))
        monkeypatch.setattr("sys.stderr", stream)
        progress.note("iteration 1")
        progress.note("stopped")
    assert stream.getvalue().split() == ["iteration", "1", "Ctrl-C", "stopped"]


def test_4_a_line_after_one_that_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def second() -> None:
        raise KeyboardInterrupt

    with Progress(total=2) as progress:
        stream = Interrupted(second)
        monkeypatch.setattr("sys.stderr", stream)
        with pytest.raises(KeyboardInterrupt):
            progress.note("iteration 1")
        progress.note("stopped")
    assert stream.getvalue().endswith("stopped\n")


@pytest.mark.slow
def test_5_a_reader_that_goes_away(tmp_path: Path) -> None:
    recipe = {"name": "alone", "environment": {"echo": {"turns": 1}}, "policies": {"main": {"policy": "network"}},
              "rollout": {"tasks": 2, "group": 2}, "training": {"iterations": 3, "threads": 1},
              "evaluation": {"tasks": 2, "every": 1}}  # fmt: skip
    load([recipe])
    (tmp_path / "alone.yaml").write_text(json.dumps(recipe))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = f"{sys.executable} -m palaestra train alone.yaml 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment)
    assert done.returncode == 0 and (tmp_path / "runs/alone/result.json").exists()
