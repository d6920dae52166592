"""Documented comparisons: (1) the arms of every `palaestra compare` that a page prints differ in their estimator, and
in nothing else; (2) a planted difference is found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from palaestra.commands.cli import app
from palaestra.commands.compare import _arms
from palaestra.recipe import load, split_arguments
from tests.docs.pages import Page, every_page

CLI: Any = typer.main.get_command(app)
COMPARED = "advantage"


def comparisons() -> Iterator[tuple[Page, list[str]]]:
    """Pages and what follows `compare`, without mentions such as `compare … --axis updates`."""
    known = set()
    for page in every_page():
        for name, *words in page.commands():
            mention = not words or "…" in words or any(word.isupper() or word == "SETUP.yaml" for word in words)
            if name == "compare" and not mention and tuple(words) not in known:
                known.add(tuple(words))
                yield page, words


def resolved(words: list[str]) -> dict[str, Mapping[str, Any]]:
    """Arm → what its recipe resolves to, without its name."""
    given = CLI.commands["compare"].make_context("compare", list(words)).params
    files, overrides = split_arguments(given["methods"] or [])
    arms = _arms(files, given["arm"] or [])
    recipes = {arm: load([given["setup"], *layers], [*overrides, *own]) for arm, (layers, own) in arms.items()}
    return {
        arm: {key: row["value"] for key, row in recipe.to_json().items() if key != "name"}
        for arm, recipe in recipes.items()
    }


def differing(words: list[str]) -> set[str]:
    """The sections in which some arm differs from the first."""
    first, *others = resolved(words).values()
    return {
        key.split(".")[0]
        for other in others
        for key in {*first, *other}
        if first.get(key, "nothing") != other.get(key, "nothing")
    }


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_1_arms_differ_in_what_is_compared(folder: Path) -> None:
    found = {}
    for page, words in comparisons():
        page.write_files(folder)
        found[page.name, shlex.join(words)] = differing(words)
    assert len(found) >= 3
    assert not {place: sections for place, sections in found.items() if not sections <= {COMPARED}}


def test_2_a_planted_difference() -> None:
    plain = ["setups/rooms-tiny.yaml", "grpo/method.yaml", "gigpo/method.yaml", "advantage.scale=none"]
    assert differing(plain) == {COMPARED, "aggregate"}
    assert differing([*plain, "aggregate.how=token-mean"]) == {COMPARED}
