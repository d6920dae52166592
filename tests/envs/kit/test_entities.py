"""Shares of named entities: (1) whole words in any case, (2) each entity once, (3) an empty list is refused."""

from __future__ import annotations

import pytest

from palaestra.envs.kit.entities import named_share
from palaestra.errors import InvalidData
from tests.messages import told


def test_1_words() -> None:
    assert named_share("Search BIRCH owner.", ["birch", "dune"]) == 0.5
    assert named_share("birches and dunes", ["birch", "dune"]) == 0
    assert named_share("the New   York\nharbor", ["new york", "York Harbor"]) == 1
    assert named_share("a+b", ["a+b", "a.b"]) == 0.5


def test_2_once() -> None:
    assert named_share("birch birch", ["Birch", "birch ", "BIRCH", "dune"]) == 0.5


@pytest.mark.parametrize("entities", [[], ["", "  "]])
def test_3_none(entities: list[str]) -> None:
    with told(InvalidData, "no entity"):
        named_share("birch", entities)
