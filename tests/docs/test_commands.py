"""What the documentation tells to train can be trained: (1) the command that a system's page prints is complete:
a recipe of its own is named alone, and a study's overrides are part of it; (2) every training command of any
page, and every arm of a comparison, runs one iteration.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from palaestra.catalogue import Study, system, systems
from palaestra.catalogue.studies import DEFAULT_SETUP, trained_with
from palaestra.commands.cli import app
from palaestra.recipe import load, split_arguments
from palaestra.training.start import train
from tests.docs.pages import ROOT, Page, every_page
from tests.extras import skip_without
from tests.vision import instead

CLI: Any = typer.main.get_command(app)
ONE = ["training.iterations=1", "evaluation.tasks=2"]
TINY = [*ONE, "rollout.tasks=2"]
SHORT = ["warm_start.episodes=16", "warm_start.epochs=1"]
LARGER = {  # what one iteration needs so that there is something to learn from, or so that it ends soon
    "archer": [*ONE, *SHORT],  # draws 32 transitions
    "empg": ONE,  # a group whose outcomes differ: a policy that can do something
    "dapo/dapo_filtered.yaml": TINY,  # two of them
    "worlds/gymnasium-chat.yaml": [*TINY, *SHORT, "rollout.max_turns=3"],  # less: it would take hundreds of turns
}
ROWS = {"train.yaml": ("train.jsonl", [{"prompt": f"What is {n} + 5?", "answer": str(n + 5)} for n in range(40)])}
PROGRAMS = {"worlds/miniwob.yaml": "browser"}


def trainings() -> Iterator[tuple[Page, list[str]]]:
    """Files and overrides of every training that starts from nothing, once each."""
    known = set()
    for page in every_page():
        for name, *arguments in page.commands():
            mention = not arguments or "…" in arguments or any(word.isupper() for word in arguments)
            if name not in ("train", "compare") or mention:
                continue
            runs = [[word for word in arguments if word != "--smoke"]]
            if name == "compare":
                given = CLI.commands[name].make_context(name, list(arguments)).params
                arms, overrides = split_arguments(given["methods"])
                runs = [[given["setup"], arm, *overrides] for arm in arms]
            for words in runs:
                goes_on = "--resume" in words or any("runs/" in word or ".load=" in word for word in words)
                if not goes_on and tuple(words) not in known:
                    known.add(tuple(words))
                    yield page, words


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each training. The pages are made only where slow tests run."""
    if {"page", "words"} <= set(metafunc.fixturenames):
        runs = [] if "not slow" in metafunc.config.option.markexpr else list(trainings())
        metafunc.parametrize(("page", "words"), runs, ids=[shlex.join(words) for _, words in runs])


def study(**fields: Any) -> Study:
    fixed = {"name": "s", "title": "s", "method": "grpo", "expected": "", "claims": ["a above b"]}
    return Study(**fixed, setup="a.yaml", reference="plain", **fields)


@pytest.mark.parametrize(
    ("studies", "words"),
    [
        ([], [DEFAULT_SETUP, "gigpo/gigpo_similar.yaml"]),
        (
            [study(arms={"plain": ["rloo/method.yaml"]}, overrides=["x=1"])],
            ["a.yaml", "gigpo/gigpo_similar.yaml", "x=1"],
        ),
        (
            [
                study(arms={"plain": ["gigpo/gigpo_similar.yaml", "y=1", "z=1"]}, overrides=["v=[1, 2]"]),
                study(
                    arms={"plain": ["rloo/method.yaml"], "other": ["gigpo/gigpo_similar.yaml", "y=2"]},
                    overrides=["x=1"],
                ),
            ],
            ["a.yaml", "gigpo/gigpo_similar.yaml", "x=1", "y=2"],
        ),
    ],
)
def test_1_what_trains_a_variant(studies: list[Study], words: list[str]) -> None:
    assert trained_with(system("gigpo_similar"), studies) == words


def test_1_recipes_that_stand_alone() -> None:
    assert trained_with(system("mact"), []) == ["mact"]
    assert "reward: milestones" in (ROOT / "palaestra/systems/multi_turn_guide/recipe.yaml").read_text(encoding="utf-8")


def test_1_every_system_is_trained_by_its_page() -> None:
    printed = {page.name: page.text for page in every_page()}
    for each in (each for each in systems() if each.overlay or each.recipe):
        assert "    palaestra train " in printed[f"docs/methods/{each.name}.md"], each.name


@pytest.mark.slow
@pytest.mark.timeout(1800)  # pretrained models play many turns
def test_2_one_iteration(page: Page, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_files(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # some recipes name parts in there
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files, overrides = split_arguments(words)
    for name, rows in (ROWS[file] for file in files if file in ROWS):
        Path(name).write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    overrides = [*overrides, *(one for file in files for one in instead(file, tmp_path / "model"))]
    for file in files:
        if file in PROGRAMS:
            skip_without(PROGRAMS[file])
    chosen = next((LARGER[file] for file in files if file in LARGER), [*TINY, *SHORT])
    if load(files, overrides).settings.warm_start is None:
        chosen = [one for one in chosen if one not in SHORT]
    if load(files, overrides).settings.experience.name == "dataset":  # nothing is played in training
        chosen = [one for one in chosen if not one.startswith("rollout.")]
    if any(file == "chat" or file.endswith("-chat.yaml") for file in files):  # a pretrained model plays
        chosen = [*chosen, "rollout.group=2"]
    recipe = load(files, [*overrides, *chosen, f"run={tmp_path / 'run'}"])
    assert train(recipe.settings, recipe=recipe.to_json(), quiet=True)
