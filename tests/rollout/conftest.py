"""A tiny language policy for all tests of this room."""

from __future__ import annotations

import pytest

from palaestra.testing import TinyModel


@pytest.fixture(scope="session")
def tiny() -> object:
    return TinyModel()
