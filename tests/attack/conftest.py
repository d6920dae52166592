"""The fixture `trials`: see tests/attack/promises.py."""

from __future__ import annotations

import pytest

from tests.attack.promises import Trials


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Trials:
    """Counts the trials of this test."""

    def note(name: str, value: object) -> None:
        request.node.user_properties.append((name, value))

    many = bool(request.config.getoption("--promises", default=None))
    return Trials(note=note, many=many, seed=int(request.config.getoption("--seed", default=None) or 1))


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How many times all kinds of runs together are killed."""
    return int(request.config.getoption("--kills", default=1))


@pytest.fixture
def messages(request: pytest.FixtureRequest) -> int:
    """How many fuzzed messages all formats of calls together get."""
    return int(request.config.getoption("--messages", default=1))
