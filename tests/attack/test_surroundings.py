"""Attacks by what is around a run: (1) texts on a terminal and in the report; (2) names of folders; (3) outputs that
are closed, full, gone or in another encoding; (4) `compare` whose runs say much, are killed, or train already.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.commands.launch import arms
from palaestra.commands.launch.arms import ArmRun, run_all
from palaestra.data import Action, Observation, Step, StopReason, Task, Trajectory
from palaestra.errors import PalaestraError, RecipeError
from palaestra.evaluation.page import LONGEST
from palaestra.evaluation.report import write_report
from palaestra.process.interruption import stoppable
from palaestra.process.terminal import visible
from palaestra.recipe.origins import folder_override, read_override
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.store.lock import is_written, writing
from palaestra.tools.sandbox import choose
from palaestra.training.progress import Progress
from tests.attack.promises import Trials, promise
from tests.commands.conftest import SMALL, Command, palaestra, recipe  # noqa: F401 - fixtures

ROOT = Path(__file__).parents[2]
ESCAPES = ("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\rcovered", "\x08\x08", "\u202egnp.exe", "\u2066", "\x00", "\x7f")
WORLD = """
from dataclasses import replace

from palaestra.testing import EchoEnvironment

TEXT = {text!r}


class World(EchoEnvironment):
    def reset(self, task):
        found = super().reset(task)
        seen = {{name: replace(one, text=TEXT) for name, one in found.observations.items()}}
        return replace(found, observations=seen)
"""
HARMLESS = promise(
    "No text of an environment, agent, tool or recipe controls the terminal",
    how="escapes, bells, carriage returns, NUL and turned lines in `play`, `explain`, errors and progress lines",
    subject="texts",
)
REPORT = promise(
    "The report is a page that a browser can open, whatever a run has said",
    how="texts of megabytes, scripts, turned lines and halves of characters",
    subject="texts",
)
NAMED = promise(
    "A run folder may have any name", how="spaces, quotes, brackets, `#`, `: `, line breaks", subject="surroundings"
)
OUTPUTS = promise(
    "A closed, full or missing output, or one in another encoding, breaks no command",
    how="a pipe to `head -1`, `> /dev/full`, `>&-`, ASCII",
    subject="surroundings",
)
COMPARED = promise(
    "A comparison that is stopped or killed leaves no process behind, and continues",
    how="SIGKILL, SIGTERM, runs that write 1 MB, folders in which a run still trains",
    subject="runs",
)


def _harmless(text: str) -> bool:
    return visible(text) == text


# ---- texts ------------------------------------------------------------------------------------------------
@HARMLESS
def test_1_visible(trials: Trials) -> None:
    for code in [*range(0x250), *range(0x2000, 0x2070), *range(0xD800, 0xD810)]:
        shown = visible(f"a{chr(code)}b")
        assert _harmless(shown) and shown.startswith("a") and shown.endswith("b") and len(shown) > 2
        assert not any(character in shown for character in "\x1b\x07\x08\x9b\r\x00\u202e")
        trials.add()
    assert visible("two\r\nlines\tas they are: é 漢 😀") == "two\nlines\tas they are: é 漢 😀"


@HARMLESS
@pytest.mark.parametrize("text", ESCAPES)
def test_1_play(recipe: Path, palaestra: Command, text: str) -> None:  # noqa: F811
    Path("world.py").write_text(WORLD.format(text=f"before {text} after"))
    Path("own.yaml").write_text(json.dumps(SMALL | {"environment": {"world.py:World": {}}}))
    done = palaestra("play", "own.yaml", "--policy", "random")
    assert done.code == 0, done.err
    assert any("before" in line and "after" in line for line in done.out) and _harmless("\n".join(done.out) + done.err)


@HARMLESS
@pytest.mark.parametrize("text", ["\\e[2J", "\\a", "\\x9b31m", "\\u202e", "\\r"])
def test_1_recipes(recipe: Path, palaestra: Command, text: str) -> None:  # noqa: F811
    Path("bad.yaml").write_text(f'name: "a{text}b"\nrollout: {{"gro{text}up": 3}}\n')
    done = palaestra("train", "small.yaml", "bad.yaml")
    assert done.code == 2 and _harmless("\n".join(done.out) + done.err)
    Path("good.yaml").write_text(f'name: "a{text}b"\n')
    done = palaestra("explain", "small.yaml", "good.yaml")
    assert done.code == 0 and _harmless("\n".join(done.out) + done.err)


@HARMLESS
def test_1_progress(capsys: pytest.CaptureFixture[str], trials: Trials) -> None:
    with Progress(total=2) as progress:
        for text in ESCAPES:
            progress.note(f"changed: name a -> {text}")
            progress.phase(f"role {text}", 1, 1)
            trials.add()
    assert _harmless(capsys.readouterr().err)


def _episode(text: str) -> Trajectory:
    step = Step(
        agent=f"<b>{text[:9]}",
        turn=0,
        action=Action(text=text, value=text, reply=text),
        observation=Observation(text=text),
        reward=1.0,
    )
    task = Task(env="echo", seed=1)
    return Trajectory(task=task, group="g", steps=[step], outcome=1.0, returns={"a": 1.0}, stop=StopReason.COMPLETED)


@REPORT
def test_1_report(tmp_path: Path, trials: Trials) -> None:
    for text in ("x" * 2_000_000, "<script>alert(1)</script>" * 9, "\u202eturned\u2066", '"><img src=x onerror=y>'):
        folder = RunFolder.create(tmp_path / str(trials.draw.random()))
        values = {"name": {"value": f"{text[:50]}\ud800", "origin": f"{text[:50]}.yaml"}}
        (folder / "recipe.json").write_text(json.dumps(values))
        EpisodeLog(folder).append(1, f"eval/{text[:9]}", [_episode(text)])
        page = write_report(folder, title=text[:50]).read_text(encoding="utf-8")
        assert len(page) < 5 * LONGEST and "<script" not in page and "<img" not in page
        assert "\u202e" not in page and "\u2066" not in page
        trials.add()
    assert "more characters" not in page  # only the long text was cut


# ---- names of folders -------------------------------------------------------------------------------------
NAMES = ("a b", "a #1", "a: b", "[x]", "{x}", "12", "*x", "!x", 'it\'s "q"', "é 漢", "two\nlines", "'q'", "null")


@NAMED
@pytest.mark.parametrize("name", NAMES)
def test_2_any_name(recipe: Path, palaestra: Command, name: str, trials: Trials) -> None:  # noqa: F811
    folder = Path("runs") / name
    assert read_override(folder_override("run", name))[1].plain() == name
    assert palaestra("train", "small.yaml", f"run={folder}", "--quiet").code == 0
    assert sorted(os.listdir("runs")) == [name] and (folder / "result.json").exists()
    done = palaestra("train", folder, "training.iterations=3", "--resume", "--quiet")
    assert done.code == 0, done.err
    assert sorted(os.listdir("runs")) == [name] and sorted(os.listdir()) == ["runs", "small.yaml"]
    assert json.loads((folder / "result.json").read_text())["step"] == 3
    trials.add(2)


@NAMED
def test_2_a_home_folder(recipe: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HOME", str(recipe.parent / "home"))
    assert palaestra("train", "small.yaml", "run=~/mine", "training.iterations=1", "--quiet").code == 0
    assert Path("home/mine/result.json").exists() and not Path("~").exists()


@NAMED
def test_2_bytes_that_are_no_text() -> None:
    with pytest.raises(RecipeError, match="bytes that are not UTF-8") as error:
        read_override("run=r/\udcff")
    str(error.value).encode()


@NAMED
def test_2_arms_stay_in_their_folder(recipe: Path, palaestra: Command) -> None:  # noqa: F811
    Path("one.yaml").write_text("advantage: rloo")
    done = palaestra("compare", "small.yaml", "--arm", "../../x: one.yaml", "--out", "out")
    assert done.code == 2 and "the name of an arm is also that of its folder" in done.err
    assert not Path("out").exists()


# ---- outputs ----------------------------------------------------------------------------------------------
@pytest.fixture
def gone() -> Iterator[io.TextIOWrapper]:
    """An output whose reader has ended."""
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    yield stream
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), write)  # what is held back goes nowhere
    stream.close()


@OUTPUTS
@pytest.mark.parametrize(("arguments", "status"), [(["--version"], 0), (["methods"], 141), (["recipes"], 141)])
def test_3_the_reader_is_gone(
    palaestra: Command,  # noqa: F811
    gone: io.TextIOWrapper,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
) -> None:
    monkeypatch.setattr(sys, "stdout", gone)
    done = palaestra(*arguments)
    assert done.code == status and done.err == ""


@OUTPUTS
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["methods"]])
def test_3_full(palaestra: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:  # noqa: F811
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        done = palaestra(*arguments)
        assert done.code == 2 and "standard output" in done.err and "No space left" in done.err
        assert "Traceback" not in done.err


@OUTPUTS
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_3_encodings(palaestra: Command, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:  # noqa: F811
    for arguments in (["methods"], ["methods", "grpo"]):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        done = palaestra(*arguments)
        assert done.code == 0 and done.err == "" and len(raw.getvalue()) > 100


CLOSED = """
import os
for number in range(3):
    os.close(number)
from palaestra.process.terminal import make_ready
make_ready()
log = open("log", "w")
assert log.fileno() > 2
os.write(2, b"a message of another library")
log.write("mine")
"""


@OUTPUTS
def test_3_closed_outputs_get_no_file(tmp_path: Path) -> None:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", CLOSED], cwd=tmp_path, env=surroundings, check=False, timeout=60)
    assert (tmp_path / "log").read_text() == "mine"


@OUTPUTS
def test_3_an_input_that_is_no_text(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00\n0\n"), encoding="utf-8"))
    done = palaestra("play", "echo")
    assert done.code == 0 and done.out[-1].startswith("completed after 2 acts")


@OUTPUTS
def test_3_no_input(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(sys, "stdin", None)
    done = palaestra("play", "echo")
    assert done.code == 0 and any("the input ended before the episode did" in line for line in done.out)


@OUTPUTS
@pytest.mark.parametrize("said", ["\\377\\376", "\\033[2J", ""])
def test_3_docker_says_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    client = tmp_path / "docker"
    client.write_text(f"#!/bin/sh\nprintf 'Cannot connect {said}' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(PalaestraError, match="no daemon answers: Cannot connect"):
        choose(backend="docker")


# ---- comparisons ------------------------------------------------------------------------------------------
class Scripted(ArmRun):
    """A run whose process is this program instead of a training."""

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", self.arguments[0]]


def _scripted(folder: Path, program: str) -> Scripted:
    return Scripted(arm="a", seed=1, folder=folder, arguments=(program,))


@COMPARED
@pytest.mark.timeout(60)
def test_4_runs_that_say_much(tmp_path: Path) -> None:
    said: list[str] = []
    run_all([_scripted(tmp_path, "print('x' * 10**6); print('the end')")], parallel=1, say=said.append)
    assert said[-1] == "a, seed 1: the end"


@COMPARED
def test_4_runs_that_say_nothing_or_no_text(tmp_path: Path) -> None:
    said: list[str] = []
    run_all([_scripted(tmp_path, "")], parallel=1, say=said.append)
    assert said[-1] == "a, seed 1: it has ended"
    program = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe broken'); sys.exit(3)"
    with pytest.raises(PalaestraError, match="exit code 3"):
        run_all([_scripted(tmp_path, program)], parallel=1, say=said.append)


@COMPARED
def test_4_a_run_that_trains_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    runs = [_scripted(tmp_path / "taken", "print(1)"), _scripted(tmp_path / "free", "print(2)")]
    with writing(tmp_path / "taken", make=True):
        assert is_written(tmp_path / "taken") and not is_written(tmp_path / "free")
        told: set[Path] = set()
        waiting: list[ArmRun] = list(runs)
        assert arms._next(waiting, told, said.append) is runs[1]
        assert arms._next(waiting, told, said.append) is None and waiting == [runs[0]]
        assert len(said) == 1 and "waits for another process" in said[0]
        (tmp_path / "taken" / "result.json").write_text('{"step": 1}')  # it has ended meanwhile
        assert arms._next(waiting, told, said.append) is None and waiting == []
    assert not is_written(tmp_path / "taken")


PARENT = '''
import os, subprocess, sys, time
own = """import os, sys, time
from palaestra.commands.launch.with_parent import end_with
end_with(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(100)"""
child = subprocess.Popen([sys.executable, "-c", own, str(os.getpid())])
time.sleep(100)
'''


@COMPARED
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_4_no_process_is_left(tmp_path: Path) -> None:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=surroundings)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    began = time.monotonic()
    while _lives(child) and time.monotonic() - began < 20:
        time.sleep(0.05)
    assert not _lives(child)
    parent.stdout.close()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@COMPARED
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_4_signals(tmp_path: Path, number: signal.Signals) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if "begins" in line:
            threading.Timer(1.0, os.kill, (os.getpid(), number)).start()

    former = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), stoppable():
            run_all([_scripted(tmp_path / "run", program)], parallel=1, say=say)
    finally:
        signal.signal(number, former)
    written = tmp_path / "pid"
    assert not written.exists() or not written.read_text() or not _lives(int(written.read_text()))
