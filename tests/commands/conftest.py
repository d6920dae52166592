"""The command line in this process, and a small run that many tests look at."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from palaestra.commands.cli import main

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 4},
    "optimizer": {"adamw": {"lr": 0.01}},
    "training": {"iterations": 2, "checkpoint_every": 1, "threads": 1},
    "evaluation": {"tasks": 4},
}
TINY = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}


class Done(NamedTuple):
    """What a command left: exit code and the lines of both outputs."""

    code: int
    out: list[str]
    err: str


Command = Callable[..., Done]


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> Iterator[None]:
    """Signals act as in a terminal, here and in processes that a test starts.

    A shell's background jobs ignore Ctrl-C, and `nohup` ignores the end of the terminal.
    """
    actions = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    former = {one: signal.signal(one, action) for one, action in actions.items()}
    yield
    for one, action in former.items():
        signal.signal(one, action)


@pytest.fixture
def palaestra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["palaestra", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Done(int(stop.value.code or 0), out.splitlines(), err)

    return run


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small recipe as a file, in the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.fixture
def folder(recipe: Path, palaestra: Command) -> Path:
    """The run of the small recipe."""
    assert palaestra("train", recipe, "--quiet").code == 0
    return Path("runs/small")
