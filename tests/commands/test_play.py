"""`palaestra play`: (1) scripted policies; (2) a run folder's policy, or another in its environment; (3) a person
through a pipe; (4) a pipe that ends; (5) faults.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Command


def test_1_expert(palaestra: Command) -> None:
    done = palaestra("play", "echo", "turns=3", "--policy", "expert", "--episodes", 2)
    assert done.code == 0
    assert [line for line in done.out if line.startswith("completed")] == [
        "completed after 3 acts; reward: player 1, outcome 1"
    ] * 2
    assert sum(line.startswith("player> ") and "(reward 0.333333)" in line for line in done.out) == 6


def test_1_seed_decides(palaestra: Command) -> None:
    first, again, other = (palaestra("play", "echo", "--policy", "random", "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_2_run_folder(folder: Path, palaestra: Command) -> None:
    own = palaestra("play", folder)
    assert own.code == 0 and any(line.startswith("player> ") for line in own.out)
    expert = palaestra("play", folder, "--policy", "expert")
    assert expert.out[-1] == "completed after 2 acts; reward: player 1, outcome 1"


def test_3_person(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("0\nred\n"))
    done = palaestra("play", "echo")
    assert done.code == 0 and done.out.count("  0: red") == 2
    assert done.out[-1].startswith("completed after 2 acts; reward: player ")


def test_4_pipe_ends(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("0\n"))
    done = palaestra("play", "echo")
    assert "  the input ended before the episode did." in done.out
    assert done.out[-1].startswith("error after 1 acts")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ech",), "Candidates: echo"),
        (("echo", "turn=3"), "Candidates: turns"),
        (("echo", "--policy", "x"), "called `x`"),
    ],
)
def test_5_faults(palaestra: Command, arguments: tuple[str, ...], message: str) -> None:
    done = palaestra("play", *arguments)
    assert done.code == 2 and message in done.err
