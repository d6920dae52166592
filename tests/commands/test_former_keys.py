"""Runs of earlier versions: (1) a key with a former name that nobody set is passed over; (2) one that was set is
refused with its present name.
"""

from __future__ import annotations

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import Recipe, load

SMALL = {"environment": "rooms", "policies": {"main": {"policy": "network"}}}


def test_1_former_keys_that_nobody_set() -> None:
    entries = load([SMALL]).to_json() | {"agents.*.seat": {"value": None, "origin": "default"}}
    assert Recipe.from_json(entries).settings.role("player").acts_for is None


def test_2_former_keys_that_were_set() -> None:
    entries = load([SMALL]).to_json() | {"agents.*.seat": {"value": "player", "origin": "old.yaml:3"}}
    with pytest.raises(RecipeError, match=r"`agents.\*.seat` is called `agents.\*.acts_for` now"):
        Recipe.from_json(entries)
