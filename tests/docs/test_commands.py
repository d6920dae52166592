"""What the documentation tells to train can be trained: (1) the command that a method's page prints is complete:
recipes that stand alone are named alone, and a study's overrides are part of it; (2) every training command of any
page, and every arm of a comparison, runs one iteration.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from palaestra.catalogue import Study, methods
from palaestra.catalogue.studies import DEFAULT_SETUP, trained_with
from palaestra.cli import app
from palaestra.recipe import load, split_arguments
from palaestra.training.start import train
from tests.docs.pages import ROOT, Page, every_page

CLI: Any = typer.main.get_command(app)
ONE = ["training.iterations=1", "evaluation.tasks=2"]
TINY = [*ONE, "rollout.tasks=2"]
SHORT = ["warm_start.episodes=16", "warm_start.epochs=1"]
LARGER = {  # what one iteration needs so that there is something to learn from
    "methods/archer.yaml": [*ONE, *SHORT],  # draws 32 transitions
    "methods/empg.yaml": ONE,  # a group whose outcomes differ: a policy that can do something
    "methods/dapo_filtered.yaml": TINY,  # two of them
}
PROGRAMS = {"worlds/miniwob.yaml": "chromedriver"}


def trainings() -> Iterator[tuple[Page, list[str]]]:
    """Files and overrides of every training that starts from nothing, once each."""
    known = set()
    for page in every_page():
        for name, *arguments in page.commands():
            if name not in ("train", "compare") or not arguments or "…" in arguments:
                continue
            runs = [arguments]
            if name == "compare":
                given = CLI.commands[name].make_context(name, list(arguments)).params
                arms, overrides = split_arguments(given["methods"])
                runs = [[given["setup"], arm, *overrides] for arm in arms]
            for words in runs:
                goes_on = "--resume" in words or any("runs/" in word or ".load=" in word for word in words)
                if not goes_on and tuple(words) not in known:
                    known.add(tuple(words))
                    yield page, words


TRAININGS = list(trainings())


def row(name: str) -> Any:
    return next(row for row in methods() if row.name == name)


def study(**fields: Any) -> Study:
    return Study(name="s", title="s", method="grpo", expected="", setup="a.yaml", reference="plain", **fields)


@pytest.mark.parametrize(
    ("studies", "words"),
    [
        ([], [DEFAULT_SETUP, "methods/grpo.yaml"]),
        ([study(arms={"plain": ["methods/rloo.yaml"]}, overrides=["x=1"])], ["a.yaml", "methods/grpo.yaml", "x=1"]),
        (
            [
                study(arms={"plain": ["methods/grpo.yaml", "y=1", "z=1"]}, overrides=["v=[1, 2]"]),
                study(arms={"plain": ["methods/rloo.yaml"], "other": ["methods/grpo.yaml", "y=2"]}, overrides=["x=1"]),
            ],
            ["a.yaml", "methods/grpo.yaml", "x=1", "y=2"],
        ),
    ],
)
def test_1_what_trains_a_method(studies: list[Study], words: list[str]) -> None:
    assert trained_with(row("grpo"), studies) == words


def test_1_recipes_that_stand_alone() -> None:
    assert trained_with(row("mact"), []) == ["teams/mact.yaml"]
    printed = [shlex.join(words) for page, words in TRAININGS if page.name == "docs/methods/multi_turn_guide.md"]
    assert len(printed) == 1 and "environment.rooms.reward=milestones" in printed[0]


def test_1_every_method_is_trained_by_its_page() -> None:
    printed = {page.name: page.text for page in every_page()}
    for method in (method for method in methods() if method.recipe):
        assert "    palaestra train " in printed[f"docs/methods/{method.name}.md"], method.name
        assert method.recipe in trained_with(method, []), method.name


@pytest.mark.slow
@pytest.mark.parametrize(("page", "words"), TRAININGS, ids=[shlex.join(words) for _, words in TRAININGS])
def test_2_one_iteration(page: Page, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_files(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # some recipes name parts in there
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files, overrides = split_arguments(words)
    for file in files:
        if file in PROGRAMS and shutil.which(PROGRAMS[file]) is None:
            pytest.skip(f"{PROGRAMS[file]} is not installed")
    chosen = next((LARGER[file] for file in files if file in LARGER), [*TINY, *SHORT])
    if load(files, overrides).settings.warm_start is None:
        chosen = [one for one in chosen if one not in SHORT]
    recipe = load(files, [*overrides, *chosen, f"run={tmp_path / 'run'}"])
    assert train(recipe.settings, recipe=recipe.to_json(), quiet=True)
