"""A run that is stopped at any moment: (1) by Ctrl-C, SIGTERM or SIGHUP: the exit status, one line that says how to go
on, a report that can be read, and the numbers of a run that was never stopped, after `--resume`, also if a library
catches the exception of the signal, and in whatever step of an event loop it arrives; (2) by a kill: at most the work
since the last checkpoint is lost; (3) a second signal ends the run at once; (4) the same in processes of their own; (5)
a signal that arrives when all is done does not spoil the result; (6) other work than training just ends.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from palaestra.process.interruption import Interruption, Stopped, stoppable
from palaestra.store.lines import JsonLines
from tests.commands.conftest import TINY, Command

RECIPE: dict[str, Any] = {
    "name": "stopped",
    "seed": 1,
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": TINY}},
    "warm_start": {"episodes": 32, "epochs": 10, "batch_tokens": 128, "optimizer": {"adamw": {"lr": 0.01}}},
    "rollout": {"tasks": 4, "group": 4, "response_tokens": 3},
    "training": {"iterations": 5, "threads": 1},
    "evaluation": {"tasks": 4, "every": 2},
}
# Moment → the function at whose call the signal arrives, the number of that call, and the iteration that is kept after
# a signal and after a kill. None: the run starts anew.
Moment = tuple[str, int, int | None, int | None]
MOMENTS: dict[str, Moment] = {
    "building": ("palaestra.training.start:build_setup", 1, None, None),
    "demonstrations": ("palaestra.training.warm_start:demonstrated", 1, None, None),
    "cloning": ("palaestra.parts.optimizers:AdamW.step", 2, None, None),
    "first checkpoint": ("palaestra.training.checkpoint:save_weights", 1, 0, None),
    "first evaluation": ("palaestra.training.monitor.panel:summarize", 1, 0, 0),
    "rollout": ("palaestra.policies.language_sampler:LanguageSession.act", 12, 0, 0),
    "stages": ("palaestra.training.loop:prepare", 2, 2, 0),
    "update": ("palaestra.training.updates:Updater.update", 3, 3, 0),
    "log": ("palaestra.store.metrics:MetricsLog.append", 3, 3, 0),
    "evaluation": ("palaestra.training.monitor.panel:summarize", 2, 2, 0),
    "episodes of an evaluation": ("palaestra.store.episodes:EpisodeLog.append", 2, 2, 0),
    "last checkpoint": ("palaestra.store.folder:RunFolder.write_checkpoint", 2, 5, 0),
    "report": ("palaestra.training.saving:write_report", 1, 5, 5),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FILES = ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl", "checkpoints/step-000005/main.safetensors")


def at(target: str, number: int, act: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Call `act` at the begin of the `number`-th call of a function, `module:name` or `module:class.method`."""
    module, _, path = target.partition(":")
    holder: Any = importlib.import_module(module)
    *names, name = path.split(".")
    for inner in names:
        holder = getattr(holder, inner)
    plain, calls = getattr(holder, name), 0

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return plain(*arguments, **options)

    patch.setattr(holder, name, counting)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("stopped.yaml").write_text(json.dumps(RECIPE))
    return Path("runs/stopped")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The logs and the weights of the run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "stopped.yaml").write_text(json.dumps(RECIPE))
    command = [sys.executable, "-m", "palaestra", "train", "stopped.yaml", "--quiet"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "runs/stopped/metrics.jsonl").read_text().splitlines()[-1])["updates"] >= 3
    return contents(folder / "runs/stopped")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def kept(folder: Path) -> int | None:
    """The iteration of the newest checkpoint."""
    return max((int(path.name[5:]) for path in folder.glob("checkpoints/step-*")), default=None)


def assert_same_after_resume(run: Path, whole: dict[str, bytes], palaestra: Command) -> None:
    done = palaestra("train", "stopped.yaml", "--resume", "--quiet")
    assert done.code == 0 and done.out[-1].startswith("success ")
    assert contents(run) == whole
    assert "Iteration 5 of 5, ended." in (run / "report.html").read_text()
    assert json.loads((run / "result.json").read_text()) == {"step": 5, "line": done.out[-1]}
    assert not list(run.rglob(".*"))


def each() -> list[Any]:
    """All signals at all moments. `make test` takes one signal for each moment."""
    return [
        pytest.param(moment, number, marks=() if number == SIGNALS[place % 3] else pytest.mark.slow)
        for place, moment in enumerate(MOMENTS)
        for number in SIGNALS
    ]


@pytest.mark.parametrize(("moment", "number"), each())
def test_1_signals(
    run: Path, whole: dict[str, bytes], palaestra: Command, moment: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, call, step, _ = MOMENTS[moment]
    with monkeypatch.context() as patch:
        at(target, call, lambda: signal.raise_signal(number), patch)
        done = palaestra("train", "stopped.yaml")
    assert kept(run) == step and "Traceback" not in done.err
    if step == 5:  # all was done
        assert done.code == 0
    else:
        assert done.code == 128 + number and not done.out
        (line,) = [line for line in done.err.splitlines() if line.startswith("stopped")]
        assert "--resume" in line and (step is None or f"iteration {step} of 5 is kept" in line)
        assert step is None or "stopped by" in (run / "report.html").read_text()
        assert not (run / "result.json").exists()
    assert_same_after_resume(run, whole, palaestra)


@pytest.mark.parametrize("fails", [True, False])
def test_1_a_library_that_catches_the_signal(
    run: Path, whole: dict[str, bytes], palaestra: Command, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers does where a signal arrives while it looks which packages can be imported."""

    def caught() -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        if fails:
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'.")

    with monkeypatch.context() as patch:
        at("palaestra.training.start:build_setup", 1, caught, patch)
        done = palaestra("train", "stopped.yaml")
    assert done.code == 128 + signal.SIGTERM and "Traceback" not in done.err and not done.out
    assert any(line.startswith("stopped; ") and "--resume" in line for line in done.err.splitlines())
    assert fails is ("After the signal came: ModuleNotFoundError: Could not import module" in done.err)
    assert_same_after_resume(run, whole, palaestra)


LOOPS = """
import asyncio, os, random, signal, time
from palaestra.process.interruption import Stopped, stoppable

async def episode(gate):
    while True:
        async with gate:
            await asyncio.sleep(0)

async def many():
    gate = asyncio.Semaphore(8)
    await asyncio.gather(*(episode(gate) for _ in range(16)))

draw = random.Random(1)
for trial in range(60):
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            with stoppable():
                os.write(tell, b"x")
                asyncio.run(many())
        except Stopped:
            os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    time.sleep(draw.uniform(0.003, 0.03))
    os.kill(child, signal.SIGTERM)
    began = time.monotonic()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > began + 20:
            os.kill(child, signal.SIGKILL)
            raise SystemExit(f"trial {trial} goes on")
        time.sleep(0.001)
"""


def test_1_in_an_event_loop() -> None:
    """The step of a task that asyncio has taken from its queue, and has not begun, must not get lost."""
    done = subprocess.run([sys.executable, "-c", LOOPS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "moment",
    [pytest.param(moment, marks=() if place % 3 else pytest.mark.slow) for place, moment in enumerate(MOMENTS)],
)
def test_2_kills(
    run: Path, whole: dict[str, bytes], palaestra: Command, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, call, _, step = MOMENTS[moment]
    child = os.fork()
    if not child:
        at(target, call, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
        palaestra("train", "stopped.yaml", "--quiet")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert kept(run) == step
    if (run / "report.html").exists():
        assert (run / "report.html").read_text().rstrip().endswith("</html>")
    assert_same_after_resume(run, whole, palaestra)


@pytest.mark.parametrize("every", [1, 2])
def test_2_a_kill_loses_what_no_checkpoint_has(
    run: Path, whole: dict[str, bytes], palaestra: Command, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if not child:
        at("palaestra.training.updates:Updater.update", 4, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
        palaestra("train", "stopped.yaml", "--quiet", f"training.checkpoint_every={every}")
        os._exit(0)
    os.waitpid(child, 0)
    assert kept(run) == {1: 3, 2: 2}[every]
    assert_same_after_resume(run, whole, palaestra)


def test_3_a_second_signal(run: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palaestra.process.interruption.ECHO", 0.0)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        at("palaestra.training.updates:Updater.update", 3, twice, patch)
        done = palaestra("train", "stopped.yaml")
    assert done.code == 143 and kept(run) == 0
    assert "Ctrl-C: the run stops after this iteration. A second one stops it at once." in done.err
    assert "iteration 0 of 5 is kept" in done.err


def test_3_one_signal_that_arrives_twice(run: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def echo() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        at("palaestra.training.updates:Updater.update", 3, echo, patch)
        done = palaestra("train", "stopped.yaml")
    assert done.code == 130 and kept(run) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGKILL], ids=lambda number: number.name)
def test_4_processes(run: Path, whole: dict[str, bytes], palaestra: Command, number: int) -> None:
    command = [sys.executable, "-m", "palaestra", "train", "stopped.yaml", "training.iterations=2000"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and (not metrics.exists() or len(metrics.read_bytes().splitlines()) < 4):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), message
    assert JsonLines(metrics).read() and "Traceback" not in message
    if number != signal.SIGKILL:
        reached = len(metrics.read_bytes().splitlines())
        assert kept(run) == reached and f"iteration {reached} of 2000 is kept" in message
    reached = kept(run) or 0
    total = max(reached, 4) + 1
    done = palaestra("train", "stopped.yaml", "--resume", "--quiet", f"training.iterations={total}")
    assert done.code == 0
    lines, first = (run / "metrics.jsonl").read_bytes().splitlines(), whole["metrics.jsonl"].splitlines()
    assert len(lines) == total and lines[:5] == first[: len(lines)][:5]


def test_5_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    former = {number: signal.getsignal(number) for number in SIGNALS}
    with stoppable() as interruption, stoppable() as inner:
        assert inner is interruption
        with interruption.deferred():
            signal.raise_signal(signal.SIGHUP)
        assert interruption.received == signal.SIGHUP
        with pytest.raises(Stopped) as caught:
            interruption.check()
    assert caught.value.status == 129 and str(caught.value) == "SIGHUP"
    assert {number: signal.getsignal(number) for number in SIGNALS} == former


def test_5_an_ignored_signal_stays_ignored() -> None:  # `nohup palaestra train …`
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable() as interruption:
            signal.raise_signal(signal.SIGHUP)
        assert interruption.received is None
    finally:
        signal.signal(signal.SIGHUP, former)


def test_5_without_a_signal() -> None:
    interruption = Interruption()
    with interruption.deferred(), interruption.allowed():
        interruption.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_6_an_evaluation(
    run: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with monkeypatch.context() as patch:
        at("palaestra.training.monitor.panel:summarize", 1, lambda: signal.raise_signal(number), patch)
        done = palaestra("eval", "stopped.yaml")
    assert done.code == 128 + number and done.err.strip() == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_5_a_signal_while_python_ends(number: int) -> None:
    late = f"import atexit, os, sys; atexit.register(os.kill, os.getpid(), {int(number)})"
    code = f"{late}; sys.argv = ['palaestra', '--help']; from palaestra.commands.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
