"""Whole runs in odd surroundings, each in a process of its own: (1) what is around a run changes none of its numbers;
(2) a folder that was moved, linked or lies on another disk continues; (3) a disk without room for bytes or files gives
a clean line, and the run continues when there is room; (4) a comparison that is killed continues, and says afterwards
what it would have said.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palaestra.commands.launch.arms import ArmRun
from palaestra.store.folder import RunFolder
from palaestra.store.lock import is_written
from tests.attack.promises import Trials, promise
from tests.commands.conftest import SMALL

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOGS = ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl")
SAME = promise(
    "What is around a run changes none of its numbers",
    how="hash seeds, locales, no HOME, no TMPDIR, clocks that jump, few open files, a narrow terminal, `umask`",
    subject="surroundings",
)
PLACES = promise(
    "A run folder that was moved, is a link or lies on another disk continues with equal bytes",
    how="rename, symbolic link, another file system",
    subject="surroundings",
)
ROOM = promise(
    "A disk without room gives one clean line, and the run continues with equal bytes when there is room",
    how="small file systems: bytes, inodes",
    subject="folders",
)
COMPARED = promise(
    "A comparison that is stopped or killed leaves no process behind, and continues",
    how="SIGKILL, SIGTERM, runs that write 1 MB, folders in which a run still trains",
    subject="runs",
)
JUMPS = """
import itertools, time
real, count = time.time, itertools.count()
time.time = lambda: real() + (7200 if next(count) % 2 else -7200)
time.time_ns = lambda: int(time.time() * 1e9)
"""
SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "hash-1": {"PYTHONHASHSEED": "1"},
    "hash-2": {"PYTHONHASHSEED": "4000000000"},
    "posix": {"LC_ALL": "POSIX", "LANG": None},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "turkish": {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"},
    "no home": {"HOME": None},
    "a home that is missing": {"HOME": "/nonexistent/home"},
    "a home that cannot be written": {"HOME": "/proc/self"},
    "no TMPDIR": {"TMPDIR": "/nonexistent/tmp"},
    "a narrow dumb terminal": {"TERM": "dumb", "COLUMNS": "20", "LINES": "1"},
    "many threads": {"OMP_NUM_THREADS": "7"},
    "clock": {"PYTHONPATH": "jumps"},
}


def _run(
    *arguments: object,
    around: dict[str, str | None] | None = None,
    before: Callable[[], None] | None = None,
    at: Path | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, value in (around or {}).items():
        if value is None:
            surroundings.pop(name, None)
        else:
            surroundings[name] = f"{Path(value).resolve()}:{ROOT}" if name == "PYTHONPATH" else value
    done = subprocess.run(
        [sys.executable, "-m", "palaestra", *map(str, arguments)],
        env=surroundings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        preexec_fn=before,
        cwd=at,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _logs(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in LOGS]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe and its run in ordinary surroundings."""
    place = tmp_path_factory.mktemp("plain")
    (place / "small.yaml").write_text(json.dumps(SMALL))
    done = _run("train", place / "small.yaml", f"run={place / 'run'}", "--quiet")
    assert done.returncode == 0, done.stderr
    return place


@SAME
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_1_surroundings(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jumps").mkdir()
    Path("jumps/sitecustomize.py").write_text(JUMPS)
    done = _run("train", plain / "small.yaml", "run=run", around=SURROUNDINGS[name])
    assert done.returncode == 0, done.stderr
    assert _logs(Path("run")) == _logs(plain / "run")


LIMITS: dict[str, Callable[[], object]] = {
    "64 open files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "umask 077": lambda: os.umask(0o077),
}


@SAME
@pytest.mark.parametrize("name", LIMITS)
def test_1_limits(plain: Path, tmp_path: Path, name: str) -> None:
    done = _run("train", plain / "small.yaml", f"run={tmp_path / 'run'}", before=LIMITS[name])  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert _logs(tmp_path / "run") == _logs(plain / "run")


@SAME
def test_1_files_of_the_future(plain: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert _run("train", plain / "small.yaml", f"run={run}", "training.iterations=1").returncode == 0
    for place in [run, *run.rglob("*")]:
        os.utime(place, (4e9, 4e9))
    assert _run("train", plain / "small.yaml", f"run={run}", "--resume").returncode == 0
    assert _logs(run)[0] == _logs(plain / "run")[0]


@SAME
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_1_another_user(plain: Path, tmp_path: Path) -> None:
    place = Path("/tmp") / f"palaestra-other-{os.getpid()}"
    place.mkdir()
    place.chmod(0o777)
    shutil.copy(plain / "small.yaml", place)

    def nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    try:
        command = [sys.executable, "-c", "import numpy, palaestra"]
        try:
            subprocess.run(command, cwd=ROOT, preexec_fn=nobody, capture_output=True, check=True)
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip("another user cannot start this Python")
        around: dict[str, str | None] = {"HOME": "/nonexistent"}
        done = _run("train", place / "small.yaml", f"run={place / 'run'}", around=around, before=nobody)
        assert done.returncode == 0, done.stderr
        assert _logs(place / "run") == _logs(plain / "run")
        (place / "closed").mkdir(mode=0o755)
        done = _run("train", place / "small.yaml", f"run={place / 'closed'}", around=around, before=nobody)
        assert done.returncode == 2 and "Permission denied" in done.stderr
    finally:
        shutil.rmtree(place)


# ---- places -----------------------------------------------------------------------------------------------
@PLACES
def test_2_places(plain: Path, tmp_path: Path, trials: Trials) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert _run("train", plain / "small.yaml", f"run={link}", "training.iterations=1").returncode == 0
    assert link.is_symlink()
    moved = Path("/dev/shm") / f"palaestra-{os.getpid()}" if os.path.isdir("/dev/shm") else tmp_path / "moved"
    shutil.move(real, moved)
    try:
        done = _run("train", moved, "training.iterations=2", "--resume")
        assert done.returncode == 0, done.stderr
        assert _logs(moved)[0] == _logs(plain / "run")[0]
        assert _run("eval", moved).returncode == 0
        done = _run("train", plain / "small.yaml", f"run={moved}", "--overwrite")
        assert done.returncode == 0 and _logs(moved) == _logs(plain / "run")
        trials.add(3)
    finally:
        shutil.rmtree(moved)
    done = _run("train", plain / "small.yaml", f"run={link}")  # it points nowhere now
    assert done.returncode == 2 and "it cannot be written" in done.stderr


# ---- disks ------------------------------------------------------------------------------------------------
@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a small file system with these options."""
    place = tmp_path / "disk"
    place.mkdir()

    def made(options: str) -> Path:
        how = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", how + options, "palaestra-attack", str(place)]
        if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this account cannot mount a file system")
        return place

    yield made
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


@ROOM
@pytest.mark.parametrize("unit", ["nr_inodes={}", "size={}k"])
def test_3_no_room(plain: Path, disk: Callable[[str], Path], unit: str, trials: Trials) -> None:
    amounts = (5, 8, 11, 14, 17, 20) if "inodes" in unit else (4, 20, 40, 60, 80, 100)
    for amount in trials.draw.sample(amounts, trials.number(few=3, many=6)):
        place = disk(unit.format(amount))
        done = _run("train", plain / "small.yaml", f"run={place / 'run'}", "--quiet")
        assert done.returncode in (0, 2), done.stderr
        if done.returncode:
            assert "the disk is full" in done.stderr, done.stderr
            assert not list(place.rglob("*.tmp"))
        disk("size=64m,nr_inodes=10000")
        resumed = ["--resume"] if RunFolder(place / "run").holds_a_run else []
        done = _run("train", plain / "small.yaml", f"run={place / 'run'}", "--quiet", *resumed)
        assert done.returncode == 0, done.stderr
        assert _logs(place / "run")[:2] == _logs(plain / "run")[:2]
        subprocess.run(["umount", str(place)], check=True)
        trials.add()


# ---- comparisons ------------------------------------------------------------------------------------------
COMPARE = ("compare", "small.yaml", "one.yaml", "training.iterations=400", "evaluation.every=40")
IN_PAIRS = (*COMPARE, "--seeds", "2", "--out", "out #1", "--parallel", "2")


def _files_of_a_comparison(place: Path) -> None:
    (place / "small.yaml").write_text(json.dumps(SMALL))
    (place / "one.yaml").write_text("advantage: rloo")


def _said(out: Path) -> dict[str, object]:
    """What a comparison and its runs found. Times are in other files, and no path of the machine is in these.

    The folders of the runs are named inside the comparison's own folder.
    """
    runs = {run.relative_to(out).as_posix(): _logs(run) for run in sorted(out.glob("runs/*/seed-*"))}
    assert len(runs) == 2
    return {"comparison": json.loads((out / "comparison.json").read_text()), **runs}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the comparison finds that nothing disturbs."""
    place = tmp_path_factory.mktemp("undisturbed")
    _files_of_a_comparison(place)
    done = _run(*IN_PAIRS, at=place)
    assert done.returncode == 0, done.stderr
    return _said(place / "out #1")


@COMPARED
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_4_killed_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, object], number: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    _files_of_a_comparison(tmp_path)
    heard = functools.partial(signal.signal, signal.SIGTERM, signal.SIG_DFL)
    started = subprocess.Popen(
        [sys.executable, "-m", "palaestra", *IN_PAIRS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,
    )
    runs = [Path("out #1/runs/one") / f"seed-{seed}" for seed in (1, 2)]
    began = time.monotonic()
    while not all((run / "metrics.jsonl").exists() for run in runs) and time.monotonic() - began < 120:
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.05)
    started.send_signal(number)
    message = started.communicate(timeout=60)[1]
    assert started.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or "the same command continues where it stopped" in message
    began = time.monotonic()
    while any(is_written(run) for run in runs):
        assert time.monotonic() - began < 60, "a run goes on after its comparison"
        time.sleep(0.05)
    assert not any((run / "result.json").exists() for run in runs)
    done = _run(*IN_PAIRS)
    assert done.returncode == 0, done.stderr
    assert {len((run / "metrics.jsonl").read_text().splitlines()) for run in runs} == {400}
    said = _said(Path("out #1"))
    assert said.keys() == undisturbed.keys()
    assert not [name for name in said if said[name] != undisturbed[name]]
    assert os.listdir() and sorted(os.listdir()) == ["one.yaml", "out #1", "small.yaml"]


def test_4_the_command_of_a_run(tmp_path: Path) -> None:
    command = ArmRun(arm="a", seed=1, folder=tmp_path / "a #1", arguments=("x.yaml",)).command()
    assert command[1:4] == ["-m", "palaestra.commands.launch.with_parent", str(os.getpid())]
    assert f"run={tmp_path / 'a #1'}" in command
