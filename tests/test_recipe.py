"""Every packaged recipe that is complete resolves, and comes back from JSON. (Those of the documentation:
tests/docs/test_snippets.py.)
"""

from __future__ import annotations

import re

import pytest

from palaestra.recipe import Recipe, load, packaged

COMPLETE = [name for name, path in packaged().items() if re.search(r"(?ms)^environment:.*^policies:", path.read_text())]


def test_there_are_complete_recipes() -> None:
    assert {"quickstart.yaml", "cartpole.yaml", "setups/rooms-tiny.yaml"} <= set(COMPLETE)


@pytest.mark.parametrize("name", COMPLETE)
def test_packaged_recipes_resolve(name: str) -> None:
    recipe = load([name])
    assert Recipe.from_json(recipe.to_json()).explain() == recipe.explain()
