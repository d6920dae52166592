"""Temporary folders: (1) closing removes them; (2) a folder in use is never swept, that of a killed process is;
(3) only folders of this kind and of this user are swept; (4) a fork does not remove the folder of its parent; (5) a
folder that was swept before it was locked is made anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from palaestra.tools import WorkFolder, temporary
from palaestra.tools.temporary import PREFIX, TemporaryFolder, abandoned, sweep
from tests.extras import some

HOLD = "from palaestra.tools.{module} import {name}\nit = {name}({argument})\nprint('made', flush=True)\ninput()"
KINDS = [
    ("temporary", "TemporaryFolder", "'x'"),
    ("files", "WorkFolder", "{'a': 'x'}"),
    ("sql", "Database", "'CREATE TABLE a(b);', writes=True"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_1_closing(place: Path) -> None:
    with TemporaryFolder("x") as path:
        (path / "a").write_text("x")
        assert path.parent == place
    folder = TemporaryFolder("x")
    folder.close()
    folder.close()
    assert not list(place.iterdir())


@pytest.mark.parametrize(("module", "name", "argument"), some(KINDS, fast=1))
def test_2_killed_processes(module: str, name: str, argument: str, place: Path) -> None:
    """Folders of a process that SIGKILL ended stayed for ever."""
    code = HOLD.format(module=module, name=name, argument=argument)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(place)},
    ) as process:
        assert process.stdout and process.stdout.readline() == b"made\n"
        sweep(str(place))
        assert len(list(place.glob(f"{PREFIX}*"))) == 1
        process.send_signal(signal.SIGKILL)
    assert len(list(place.glob(f"{PREFIX}*"))) == 1
    temporary._sweep_once.cache_clear()
    with WorkFolder():  # the next process removes it when it makes its own first folder
        assert len(list(place.glob(f"{PREFIX}*"))) == 1
    assert not list(place.glob(f"{PREFIX}*"))


def test_3_what_is_not_ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "other").mkdir()
    (place / "palaestra-weights-x").mkdir()
    (place / f"{PREFIX}link").symlink_to(place / "other")
    (place / f"{PREFIX}file").write_text("x")
    sweep(str(place))
    assert len(list(place.iterdir())) == 4
    (place / f"{PREFIX}folder").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep(str(place))
    assert (place / f"{PREFIX}folder").is_dir()  # of another user


def test_4_forks(place: Path) -> None:
    folder = TemporaryFolder("x")
    pid = os.fork()
    if pid == 0:
        folder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert folder.path.is_dir()
    with abandoned(folder.path) as free:
        assert not free
    folder.close()
    assert not folder.path.exists()


def test_5_swept_before_it_was_locked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp
    swept: list[str] = []

    def early(**options: str) -> str:
        path = made(**options)
        if not swept:
            swept.append(path)
            sweep(str(place))
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", early)
    with TemporaryFolder("x") as path:
        assert swept and str(path) not in swept and path.is_dir()
