"""The command line itself: (1) exit codes: 0, 2 for faults of the user, 130 for Ctrl-C, 128 and its
number for another signal; (2) no traceback for them
unless PALAESTRA_TRACEBACK is set; (3) mistakes of our own are never hidden; (4) usage faults name the help; (5) of
several processes that train one run, the one with the cause speaks first.
"""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

import pytest

import palaestra
from palaestra.commands import cli
from palaestra.errors import RankError, RecipeError
from palaestra.process.interruption import Stopped


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["palaestra", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(**arguments: object) -> None:
        raise error

    load = cli.importlib.import_module  # others load modules with it, too

    def loaded(name: str, package: str | None = None) -> object:
        return SimpleNamespace(run=run) if name.startswith("palaestra.commands.") else load(name, package)

    monkeypatch.setattr(cli.importlib, "import_module", loaded)


FAULT = RecipeError(where="a.yaml:3", what="it is wrong.", options=["right"], remedy="Mend it.")


def test_1_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == palaestra.__version__


@pytest.mark.parametrize(
    ("command", "message"),
    [("train", "the same command with `--resume`"), ("compare", "continues where it stopped"), ("doctor", "stopped\n")],
)
def test_1_control_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    fails_with(monkeypatch, KeyboardInterrupt())
    assert leave(monkeypatch, command, *(["a", "b"] if command != "doctor" else [])) == 130
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_1_other_signals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int) -> None:
    stop = Stopped(number)
    stop.remedy = "nothing is lost"
    fails_with(monkeypatch, stop)
    assert leave(monkeypatch, "train", "a") == 128 + number
    assert capsys.readouterr().err == "\nstopped; nothing is lost\n"


@pytest.mark.parametrize("code", [0, 1, None, "text"])
def test_1_exit_in_the_code_of_a_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: object
) -> None:
    fails_with(monkeypatch, SystemExit(code))
    assert leave(monkeypatch, "doctor") == 2
    shown = capsys.readouterr().err
    assert f"it ended the program by `exit` (status {code})" in shown and "test_cli.py, line" in shown


def test_2_message_without_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(monkeypatch, FAULT)
    assert leave(monkeypatch, "doctor") == 2
    assert capsys.readouterr().err == "\na.yaml:3\n\n  it is wrong.\n  Candidates: right.\n\n  Mend it.\n\n"


def test_2_traceback_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, FAULT)
    monkeypatch.setenv("PALAESTRA_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["palaestra", "doctor"])
    with pytest.raises(RecipeError):
        cli.main()


def test_3_own_mistakes_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(monkeypatch, ZeroDivisionError())
    monkeypatch.setattr(sys, "argv", ["palaestra", "doctor"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "Missing argument"),
        (("fly",), "No such command 'fly'"),
        (("train", "a.yaml", "--fast"), "No such option"),
        (("train", "absent.yaml"), "no recipe file has this path or name"),
    ],
)
def test_4_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert leave(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    if "recipe file" not in message:
        assert "`palaestra" in err and "--help` shows its arguments" in err


LOST = RankError(where="rank 0 of 2", what="another process has ended.", remedy="It says why.")


@pytest.mark.parametrize(
    ("rank", "world", "error", "turns"),
    [
        (None, None, FAULT, []),
        ("0", "1", FAULT, []),
        ("0", "2", FAULT, [0]),
        ("1", "2", FAULT, [1]),
        ("1", "2", KeyError("a mistake of our own"), [1]),
        ("0", "2", LOST, [3]),
        ("1", "2", LOST, [3]),
    ],
)
def test_5_turns(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, world: str | None, error: Exception, turns: list[int]
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    waited: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    fails_with(monkeypatch, error)
    if isinstance(error, KeyError):
        with pytest.raises(KeyError):
            leave(monkeypatch, "train", "a")
    else:
        assert leave(monkeypatch, "train", "a") == 2
    assert waited == [cli.TURN_S * turn for turn in turns]
