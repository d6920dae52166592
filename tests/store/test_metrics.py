"""What must hold for the logs:

(1) two equal runs write equal bytes, whatever the order of keys, the kind of number, and the clock;
(2) what depends on the machine, such as times, goes to `timings.jsonl` only;
(3) numbers come back exactly, numbers that are not finite come back as None, and the file is plain JSON;
(4) a SIGKILL at any moment costs at most the line that was being written;
(5) resuming gives the bytes of a run that was never interrupted;
(6) a full disk leaves the last whole line, and says so;
(7) a damaged line is named by its number;
(8) the newest evaluation is known without reading the file again, also after a resume.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import palaestra
from palaestra.errors import RunFolderError
from palaestra.store.folder import EVALUATIONS, METRICS, TIMINGS, RunFolder
from palaestra.store.lines import JsonLines
from palaestra.store.metrics import MetricsLog, is_measured, read


def play(folder: Path, steps: range, *, seconds: float = 1.0) -> MetricsLog:
    log = MetricsLog(folder)
    for step in steps:
        log.append(step, {"reward/mean": step / 7, "environment_steps": 10 * step, "time/rollout": seconds})
        if step % 2 == 0:
            log.append_evaluation(step, {"eval/rooms/success": step / 10})
    return log


def test_equal_runs_write_equal_bytes(tmp_path: Path) -> None:  # rule 1
    first, second = RunFolder.create(tmp_path / "a"), RunFolder.create(tmp_path / "b")
    MetricsLog(first).append(1, {"b": 0.1, "a": 3, "ok": True, "time/x": 1.0})
    MetricsLog(second.path).append(1, {"ok": np.True_, "time/x": 2.0, "a": torch.tensor(3), "b": np.float64(0.1)})
    assert (first / METRICS).read_text() == '{"a": 3, "b": 0.1, "ok": true, "step": 1}\n'
    assert (first / METRICS).read_bytes() == (second / METRICS).read_bytes()
    assert (first / TIMINGS).read_bytes() != (second / TIMINGS).read_bytes()


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("time/rollout", True),
        ("speed/tokens", True),
        ("policy/a/time/update", True),
        ("reward/mean", False),
        ("timeout", False),
        ("stop/time", False),
        ("engine/evictions", True),
        ("agent/engine/return", False),
        ("stop/error/engine", False),
    ],
)
def test_what_depends_on_the_machine(tmp_path: Path, name: str, measured: bool) -> None:  # rule 2
    assert is_measured(name) is measured
    MetricsLog(tmp_path).append(1, {name: 1.0})
    assert (name in read(tmp_path)[0]) is not measured
    assert (tmp_path / TIMINGS).exists() is measured


def test_numbers_come_back(tmp_path: Path) -> None:  # rule 3
    values = {"a": 0.1 + 0.2, "b": float("nan"), "c": -float("inf"), "d": 1e-300, "e": np.float32(0.1), "f": 2**60}
    MetricsLog(tmp_path).append(4, values)
    json.loads((tmp_path / METRICS).read_text(), parse_constant=lambda text: pytest.fail(text))
    back = read(tmp_path / METRICS)[0]
    assert back == {
        "a": 0.1 + 0.2,
        "b": None,
        "c": None,
        "d": 1e-300,
        "e": float(np.float32(0.1)),
        "f": 2**60,
        "step": 4,
    }
    assert read(tmp_path / EVALUATIONS) == []


def test_unicode_line_ends_stay_inside_a_line(tmp_path: Path) -> None:  # rule 3
    lines = JsonLines(tmp_path / "x")
    lines.append({"step": 1, "text": "a\u2028b\nc"})
    assert len((tmp_path / "x").read_text().splitlines()) == 1
    assert lines.read()[0]["text"] == "a\u2028b\nc"


WRITER = """
import sys
from palaestra.store.metrics import MetricsLog
log = MetricsLog(sys.argv[1])
for step in range(1, 1_000_000):
    log.append(step, {"x": "y" * 5000})
    if step == 20:
        print("started", flush=True)
"""


def test_a_real_kill_costs_at_most_a_line(tmp_path: Path) -> None:  # rule 4
    root = Path(palaestra.__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    steps = [line["step"] for line in read(tmp_path)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 20


@pytest.mark.parametrize("lost", [1, 2, 30])
def test_a_half_line_is_dropped(tmp_path: Path, lost: int) -> None:  # rule 4
    play(tmp_path, range(1, 6))
    path = tmp_path / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    assert [line["step"] for line in read(tmp_path)] == [1, 2, 3, 4]
    MetricsLog(tmp_path).append(5, {"reward/mean": 5 / 7, "environment_steps": 50})  # without truncating first
    assert path.read_bytes() == whole


@pytest.mark.parametrize("step", [-1, 0, 3, 4, 9])
@pytest.mark.parametrize("lost", [0, 7])
def test_resuming_gives_the_bytes_of_an_uninterrupted_run(tmp_path: Path, step: int, lost: int) -> None:  # rule 5
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for place in (whole, broken):
        place.mkdir()
        play(place, range(10))
    for name in (METRICS, EVALUATIONS, TIMINGS) if step < 8 else (METRICS, TIMINGS):
        (broken / name).write_bytes((broken / name).read_bytes()[: -lost or None])
    MetricsLog(broken).truncate(step)
    resumed = min(step, 8) if lost else step
    assert [line["step"] for line in read(broken)] == list(range(resumed + 1))
    play(broken, range(resumed + 1, 10), seconds=2.0)
    for name in (METRICS, EVALUATIONS):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 6
    log = play(tmp_path, range(1, 3))
    before = (tmp_path / METRICS).read_bytes()
    plain = os.write

    def half_then_full(handle: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return plain(handle, data[: len(data) // 2])

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(RunFolderError, match=r"disk is full: \d+ bytes were needed"):
        log.append(3, {"reward/mean": 1.0})
    assert (tmp_path / METRICS).read_bytes() == before


def test_a_damaged_line_is_named(tmp_path: Path) -> None:  # rule 7
    play(tmp_path, range(1, 4))
    lines = (tmp_path / METRICS).read_text().splitlines()
    for damage in ("{broken", "[1]"):
        (tmp_path / METRICS).write_text("\n".join([lines[0], damage, lines[2]]) + "\n")
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2"):
            read(tmp_path)


def test_newest_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 8
    log = MetricsLog(tmp_path)
    assert log.last_evaluation == {}
    log.append_evaluation(0, {"eval/rooms/success": np.float64(0.5), "eval/rooms/return": float("nan"), "time/x": 1.0})
    assert log.last_evaluation == log.evaluations.read()[-1] == MetricsLog(tmp_path).last_evaluation
    log.append_evaluation(2, {"eval/rooms/success": 1.0})
    assert log.last_evaluation == {"eval/rooms/success": 1.0, "step": 2}
    log.truncate(1)
    assert log.last_evaluation["step"] == 0
    monkeypatch.setattr(JsonLines, "read", lambda self: pytest.fail("the file is read again"))
    assert log.last_evaluation["eval/rooms/return"] is None
