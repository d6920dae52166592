"""Temporary folders of engines: (1) that of a living process stays, and the next process removes that of a killed one;
(2) a link under such a name is not followed; (3) an engine that nobody shut down removes its folder at its end.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from palaestra.engines.external.fleet import Fleet
from palaestra.tools import temporary
from palaestra.tools.temporary import PREFIX, TemporaryFolder

WEIGHTS = """
from palaestra.engines.external.fleet import Fleet
it = Fleet(None, [], folder=None, server_folder=None, base=None, initial=False, patience=1, seconds=1, health_seconds=1)
it._place("a").mkdir(parents=True)
"""
ENGINE = """
from palaestra.engines.remote import RemoteEngine
it = RemoteEngine({}, "cpu", start=True)
it._start_process()
"""
KINDS = [("weights", WEIGHTS), ("engine", ENGINE)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _next_process(place: Path) -> None:
    temporary._sweep_once.cache_clear()
    TemporaryFolder("x").close()


@pytest.mark.parametrize(("kind", "code"), KINDS, ids=[kind for kind, _ in KINDS])
def test_1_killed_processes(kind: str, code: str, place: Path) -> None:
    """Folders of a process that SIGKILL ended stayed for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('made', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(place)},
    ) as process:
        assert process.stdout and process.stdout.readline() == b"made\n"
        _next_process(place)
        assert len(list(place.glob(f"{PREFIX}{kind}-*"))) == 1
        process.send_signal(signal.SIGKILL)
    assert len(list(place.glob(f"{PREFIX}{kind}-*"))) == 1
    _next_process(place)
    assert not list(place.glob("palaestra-*"))


@pytest.mark.parametrize("kind", ["weights", "engine"])
def test_2_links(kind: str, place: Path) -> None:
    (place / "other").mkdir()
    (place / "other" / "file").write_text("x")
    (place / f"{PREFIX}{kind}-link").symlink_to(place / "other")
    _next_process(place)
    assert (place / "other" / "file").is_file()
    assert (place / f"{PREFIX}{kind}-link").is_symlink()


def test_3_forgotten(place: Path) -> None:
    given: dict[str, Any] = {"folder": None, "server_folder": None, "base": None, "initial": False}
    dialect: Any = None
    fleet = Fleet(dialect, [], **given, patience=1, seconds=1, health_seconds=1)
    fleet._place("a").mkdir(parents=True)
    assert list(place.glob(f"{PREFIX}weights-*"))
    del fleet
    gc.collect()
    assert not list(place.glob(f"{PREFIX}weights-*"))
