"""The team of one's own in docs/teams.md: (1) one file of at most 60 lines; (2) its demonstration and its program play;
(3) a misspelled role is refused before anything is played. That it trains is tested with the other pages.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.training.setup import build_setup
from tests.docs.pages import ROOT, Page
from tests.teams.playing import acts, play, told_word

PAGE = Page(ROOT / "docs/teams.md", (ROOT / "docs/teams.md").read_text(encoding="utf-8"))


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the page's file, with its recipe beside it."""
    monkeypatch.chdir(tmp_path)
    PAGE.write_files(tmp_path)
    names: dict[str, Any] = {"__name__": "pair"}
    exec((tmp_path / "pair.py").read_text(encoding="utf-8"), names)
    return names


def test_1_one_short_file(team: Any) -> None:
    assert len(Path("pair.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_2_it_plays(team: Any) -> None:
    def listens(turn: int, seen: Any) -> str:
        return str(seen.text).split()[1].rstrip(".")

    says = {"left": lambda turn, seen: told_word(seen), "right": ["mud"], "player": listens}
    (played,) = play(team["pair"], says)
    assert [name for name, _ in acts(played)] == ["left", "right", "player"]
    assert (played.outcome, played.returns) == (1.0, {"left": 0.0, "right": 0.0, "player": 1.0})
    (shown,) = play(functools.partial(team["demonstrate"], noise=0.0), says)
    assert shown.outcome == 1.0
    assert len(shown.steps) == 3


def test_3_misspelled(team: Any) -> None:
    recipe = load(["pair.yaml"], ["agents.lefty.policy=scouts"])
    with pytest.raises(RecipeError, match="lefty"):
        build_setup(recipe.settings)
