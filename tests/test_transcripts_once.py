"""Transcripts are played once in all tests: (1) equal runs have equal transcripts, which are played once; (2) another
seed, option or method of the environment plays them anew, and so does an environment of a test's own; (3) played twice
they are the same, for environments of each kind.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from palaestra.recipe import load
from palaestra.testing.fakes import EchoEnvironment
from palaestra.training import setup
from tests.transcripts_once import once

TINY = {"policies": {"main": {"policy": "network"}}}
OWN = "from palaestra.testing.fakes import EchoEnvironment\n\n\nclass Own(EchoEnvironment):\n    pass\n"
plain = getattr(setup.transcripts, "__wrapped__", setup.transcripts)


def given(environment: Any, *overrides: str) -> tuple[Any, Any, Any]:
    settings = load([{**TINY, "environment": environment}], overrides).settings
    make = functools.partial(settings.environment.part.target, **settings.environment.options)
    return settings, make, make()


def test_1_and_2_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def counting(settings: Any, make: Any, source: Any) -> list[str]:
        played.append(settings.environment.name)
        return plain(settings, make, source)

    remembering = once(counting)
    first = remembering(*given("echo"))
    first.append("changed by who got it")
    assert remembering(*given("echo", "training.iterations=3")) == first[:-1] and len(played) == 1
    remembering(*given("echo", "seed=8"))
    remembering(*given("echo", "environment.echo.turns=3"))
    assert len(played) == 3
    monkeypatch.setattr(EchoEnvironment, "close", lambda self: None)
    remembering(*given("echo"))
    (tmp_path / "own.py").write_text(OWN)
    for _ in range(2):
        remembering(*given(f"{tmp_path / 'own.py'}:Own"))
    assert len(played) == 6


@pytest.mark.parametrize("environment", ["echo", "rooms", "twenty_questions"])
def test_3_the_same_twice(environment: str) -> None:
    found = plain(*given(environment))
    assert found and found == plain(*given(environment))
