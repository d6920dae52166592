"""What must hold for the lock of a run folder:

(1) one at a time holds it, in this process too, and the other is told the folder and the pid;
(2) it is free as soon as its process is gone, killed or not, even if a forked child lives on;
(3) reading asks for no lock, and cleans up only where nobody writes;
(4) nothing is left in the folder, and a missing folder is made only for a new run;
(5) who tidies a folder up before reading it is waited for, and never called a run;
(6) of many that want it at once, killed or not, one after another has it, and no two ever do;
(7) a link in its place, or in that of a log, is not followed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from palaestra.errors import RunFolderError
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.store.lines import JsonLines
from palaestra.store.lock import LOCK, PATIENCE, is_written, unless_written, writing

HOLD = """
import multiprocessing, sys, time
from palaestra.store.lock import writing

with writing(sys.argv[1], make=True):
    if sys.argv[2] != "none":
        child = multiprocessing.get_context(sys.argv[2]).Process(target=time.sleep, args=(60,))
        child.start()
        print(child.pid, flush=True)
    else:
        print(0, flush=True)
    time.sleep(60)
"""


def holder(folder: Path, start: str = "none") -> tuple[subprocess.Popen[str], int]:
    """A process that holds the lock, and the pid of its child."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), start], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_1_one_at_a_time(tmp_path: Path) -> None:
    process, _ = holder(tmp_path)
    try:
        with pytest.raises(RunFolderError) as caught, writing(tmp_path, make=True):
            pass
    finally:
        process.kill()
        process.wait()
    assert caught.value.where == f"run={tmp_path}" and f"(process {process.pid})" in caught.value.what
    with (
        writing(tmp_path, make=True),
        pytest.raises(RunFolderError, match=f"process {os.getpid()}"),
        writing(tmp_path, make=True),
    ):
        pass


@pytest.mark.parametrize("start", ["none", "fork", "forkserver", "spawn"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_2_free_when_its_process_is_gone(tmp_path: Path, start: str, how: signal.Signals) -> None:
    process, child = holder(tmp_path, start)
    process.send_signal(how)
    process.wait()
    try:
        if child:
            os.kill(child, 0)  # it lives on
        with writing(tmp_path, make=False):
            pass
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_3_reading(tmp_path: Path) -> None:
    RunFolder.create(tmp_path).write_json(RECIPE, {"seed": 1})
    half = tmp_path / ".metrics.jsonl.1.tmp"
    half.write_text("half")
    with writing(tmp_path, make=False):
        assert RunFolder.open(tmp_path).read_json(RECIPE) == {"seed": 1} and half.exists()
        RunFolder.open(tmp_path, writing=True)
        assert not half.exists()
    half.write_text("half")
    assert RunFolder.open(tmp_path).read_json(RECIPE) == {"seed": 1} and not half.exists()


def test_4_nothing_is_left(tmp_path: Path) -> None:
    with writing(tmp_path / "deep" / "new", make=True):
        assert (tmp_path / "deep" / "new" / LOCK).read_text().strip() == str(os.getpid())
    assert not list((tmp_path / "deep" / "new").iterdir())
    with writing(tmp_path / "absent", make=False):
        pass
    assert not (tmp_path / "absent").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="File exists"), writing(tmp_path / "file", make=True):
        pass


def test_5_a_reader_is_no_run(tmp_path: Path) -> None:
    """It held the lock with its pid, and a run that began beside it was refused after half a second."""
    held, done = threading.Event(), threading.Event()

    def tidy() -> None:
        with unless_written(tmp_path) as alone:
            assert alone
            held.set()
            done.wait(20.0)

    (tmp_path / LOCK).write_text("12345\n")  # of a run that was killed
    thread = threading.Thread(target=tidy)
    thread.start()
    assert held.wait(20.0) and (tmp_path / LOCK).read_text() == ""
    threading.Timer(3 * PATIENCE, done.set).start()
    began = time.monotonic()
    with writing(tmp_path, make=False):
        assert time.monotonic() - began >= 2 * PATIENCE
    thread.join()


RACE = """
import os, random, sys, time
from palaestra.errors import RunFolderError
from palaestra.store.folder import RunFolder
from palaestra.store.lock import writing

folder, draw = sys.argv[1], random.Random(int(sys.argv[2]))
end = time.monotonic() + 4.0
while time.monotonic() < end:
    if draw.random() < 0.5:
        RunFolder.open(folder)
        continue
    try:
        with writing(folder, make=False):
            handle = os.open(os.path.join(folder, "inside"), os.O_CREAT | os.O_EXCL)  # fails, if another one is inside
            time.sleep(draw.random() / 100)
            if draw.random() < 0.05:
                os.unlink(os.path.join(folder, "inside"))
                os.kill(os.getpid(), 9)
            os.unlink(os.path.join(folder, "inside"))
            os.close(handle)
            print("held", flush=True)
    except RunFolderError as error:
        assert "another run writes" in str(error), error
"""


def test_6_never_two(tmp_path: Path) -> None:
    RunFolder.create(tmp_path).write_json(RECIPE, {"seed": 1})
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(6)
    ]
    said = [process.communicate(timeout=120) for process in racing]
    assert all(process.returncode in (0, -signal.SIGKILL) for process in racing), said
    assert sum(out.count("held") for out, _ in said) > 20
    with writing(tmp_path, make=False):
        pass


def test_7_a_link_is_not_followed(tmp_path: Path) -> None:
    """In a run folder of somebody else, it may lead to any file."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    run.mkdir()
    mine.write_text("mine")
    (run / LOCK).symlink_to(mine)
    with unless_written(run) as held:
        assert not held
    assert not is_written(run)
    with pytest.raises(RunFolderError), writing(run, make=True):
        pass
    assert mine.read_text() == "mine" and (run / LOCK).is_symlink()
    (run / "metrics.jsonl").symlink_to(mine)
    with pytest.raises(RunFolderError):
        JsonLines(run / "metrics.jsonl").append({"step": 1})
    assert mine.read_text() == "mine"
