"""Sources: (1) arguments are files or overrides; (2) a path is taken before a packaged name; (3) a packaged recipe
is found by its name below `recipes/`, with or without that folder, and those of a system by its folder; (4) an unknown
file is refused with the nearest names; (5) a folder or an unreadable file is refused; (6) a mapping is a source too;
(7) a file extends others, which lie beside it or come with Palaestra, and never itself.
"""

from __future__ import annotations

import pytest

from palaestra.errors import RecipeError, UnknownName
from palaestra.recipe import load, packaged, sources, split_arguments
from tests.messages import told

SETUP = "environment: yard\npolicies: {main: {policy: words}}\n"


@pytest.fixture(autouse=True)
def checkout(world, write, monkeypatch):
    """A checkout with a packaged recipe and a system; the working folder is elsewhere."""
    write("checkout/recipes/setups/yard.yaml", SETUP)
    write("checkout/palaestra/systems/gigpo/method.yaml", "# arXiv 2505.10978\nadvantage: gigpo\n")
    write("checkout/palaestra/systems/gigpo/recipe.yaml", "extends: [setups/yard.yaml, method.yaml]\nseed: 7\n")
    write("checkout/palaestra/systems/gigpo/system.yaml", "title: GiGPO\n")
    write("work/own.yaml", SETUP)
    monkeypatch.setattr(sources, "PACKAGE", world / "checkout" / "palaestra")
    monkeypatch.chdir(world / "work")


def test_arguments_are_files_or_overrides(world) -> None:  # rule 1
    (world / "work" / "a=b.yaml").write_text(SETUP)
    arguments = ["gigpo/method.yaml", "rollout.group=16", "a=b.yaml", "name=x"]
    assert split_arguments(arguments) == (["gigpo/method.yaml", "a=b.yaml"], ["rollout.group=16", "name=x"])
    long = f"program={{x: {{words: [{', '.join(['word'] * 999)}]}}}}"  # longer than a file's name may be
    assert split_arguments([long]) == ([], [long])


def test_a_path_comes_first(world) -> None:  # rule 2
    (world / "work" / "gigpo").mkdir()
    (world / "work" / "gigpo" / "method.yaml").write_text("advantage: reinforce\n")
    assert load(["own.yaml", "gigpo/method.yaml"]).where("advantage") == "gigpo/method.yaml:1  advantage: reinforce"
    assert load([world / "work" / "own.yaml"]).origin("environment") == "own.yaml:1"


@pytest.mark.parametrize("name", ["setups/yard.yaml", "recipes/setups/yard.yaml"])
def test_packaged_recipes(name) -> None:  # rule 3
    recipe = load([name, "gigpo/method.yaml"])
    assert recipe.where("advantage") == "gigpo/method.yaml:2  advantage: gigpo"
    assert list(packaged()) == ["setups/yard.yaml", "gigpo/method.yaml", "gigpo/recipe.yaml"]


@pytest.mark.parametrize("name", ["gigpo", "gigpo/recipe.yaml"])
def test_a_system_is_its_recipe(name) -> None:  # rule 3
    recipe = load([name])
    assert recipe.settings.seed == 7 and recipe.origin("seed") == "gigpo/recipe.yaml:2"
    assert recipe.origin("environment") == "setups/yard.yaml:1"


def test_an_installed_package_brings_its_recipes(world, monkeypatch) -> None:  # rule 3
    (world / "checkout" / "recipes").rename(world / "checkout" / "palaestra" / "recipes")
    assert load(["setups/yard.yaml"]).origin("environment") == "setups/yard.yaml:1"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("methods/gigpo.yaml", "gigpo/method.yaml"),
        ("gigpo/methd.yaml", "gigpo/method.yaml, gigpo/recipe.yaml"),
        ("ovn.yaml", "own.yaml"),
        ("gigop", "gigpo"),
    ],
)
def test_an_unknown_file(name, near) -> None:  # rule 4
    with told(UnknownName, f"Candidates: {near}.\n"):
        load([name])


def test_a_folder_or_an_unreadable_file(world) -> None:  # rule 5
    with told(UnknownName, "own.yaml"):
        load(["."])
    (world / "work" / "mine").mkdir()
    (world / "work" / "mine" / "recipe.yaml").write_text("extends: ../own.yaml\nseed: 3\n")
    assert load(["mine"]).origin("seed") == "mine/recipe.yaml:2"
    (world / "work" / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"^bytes\.yaml\n\n  it cannot be read"):
        load(["bytes.yaml"])


def test_a_mapping_is_a_source() -> None:  # rule 6
    recipe = load(["own.yaml", {"rollout": {"group": 4}}])
    assert recipe.settings.rollout.group == 4
    assert recipe.where("rollout.group") == "argument  group: 4"


def test_files_extend_others(world) -> None:  # rule 7
    (world / "work" / "first.yaml").write_text("extends: own.yaml\nseed: 1\nname: first\n")
    (world / "work" / "second.yaml").write_text("extends: [first.yaml, gigpo/method.yaml]\nseed: 2\n")
    recipe = load(["second.yaml"])
    assert (recipe.settings.seed, recipe.settings.name) == (2, "first")
    assert recipe.origin("name") == "first.yaml:3" and recipe.origin("advantage") == "gigpo/method.yaml:2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: circle.yaml\n", "circle.yaml → circle.yaml"),
        ("extends: {a: b}\n", "`extends`"),
        ("extends: [nothing.yaml]\n", "nothing.yaml"),
    ],
)
def test_what_cannot_be_extended(world, text, words) -> None:  # rule 7
    (world / "work" / "circle.yaml").write_text(text)
    with told((RecipeError, UnknownName), words):
        load(["circle.yaml"])
