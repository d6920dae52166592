"""Sources: (1) arguments are files or overrides; (2) a path is taken before a packaged name; (3) a packaged recipe
is found by its name below `recipes/`, with or without that folder; (4) an unknown file is refused with the nearest
names; (5) a folder or an unreadable file is refused; (6) a mapping is a source too.
"""

from __future__ import annotations

import pytest

from palaestra.errors import RecipeError, UnknownName
from palaestra.recipe import load, packaged, sources, split_arguments

SETUP = "environment: yard\npolicies: {main: {policy: words}}\n"


@pytest.fixture(autouse=True)
def checkout(world, write, monkeypatch):
    """A checkout with two packaged recipes; the working folder is elsewhere."""
    write("checkout/recipes/setups/yard.yaml", SETUP)
    write("checkout/recipes/methods/gigpo.yaml", "# arXiv 2505.10978\nadvantage: gigpo\n")
    write("work/own.yaml", SETUP)
    monkeypatch.setattr(sources, "CHECKOUT", world / "checkout")
    monkeypatch.setattr(sources, "PACKAGE", world / "checkout" / "palaestra")
    monkeypatch.chdir(world / "work")


def test_arguments_are_files_or_overrides(world) -> None:  # rule 1
    (world / "work" / "a=b.yaml").write_text(SETUP)
    arguments = ["methods/gigpo.yaml", "rollout.group=16", "a=b.yaml", "name=x"]
    assert split_arguments(arguments) == (["methods/gigpo.yaml", "a=b.yaml"], ["rollout.group=16", "name=x"])
    long = f"program={{x: {{words: [{', '.join(['word'] * 999)}]}}}}"  # longer than a file's name may be
    assert split_arguments([long]) == ([], [long])


def test_a_path_comes_first(world) -> None:  # rule 2
    (world / "work" / "methods").mkdir()
    (world / "work" / "methods" / "gigpo.yaml").write_text("advantage: reinforce\n")
    assert load(["own.yaml", "methods/gigpo.yaml"]).where("advantage") == "methods/gigpo.yaml:1  advantage: reinforce"
    assert load([world / "work" / "own.yaml"]).origin("environment") == "own.yaml:1"


@pytest.mark.parametrize("name", ["methods/gigpo.yaml", "recipes/methods/gigpo.yaml"])
def test_packaged_recipes(name) -> None:  # rule 3
    recipe = load(["setups/yard.yaml", name])
    assert recipe.where("advantage") == "recipes/methods/gigpo.yaml:2  advantage: gigpo"
    assert list(packaged()) == ["methods/gigpo.yaml", "setups/yard.yaml"]


def test_an_installed_package_brings_its_recipes(world, monkeypatch) -> None:  # rule 3
    (world / "checkout" / "recipes").rename(world / "checkout" / "inside")
    (world / "checkout" / "palaestra").mkdir()
    (world / "checkout" / "inside").rename(world / "checkout" / "palaestra" / "recipes")
    assert load(["setups/yard.yaml"]).origin("environment") == "recipes/setups/yard.yaml:1"


@pytest.mark.parametrize(("name", "near"), [("methods/gigp.yaml", "methods/gigpo.yaml"), ("ovn.yaml", "own.yaml")])
def test_an_unknown_file(name, near) -> None:  # rule 4
    with pytest.raises(UnknownName) as caught:
        load([name])
    assert str(caught.value) == (
        f"{name}\n\n  no recipe file is called so.\n  Candidates: {near}.\n\n"
        "  Give a path, or a name below the packaged folder `recipes/`, such as quickstart.yaml."
    )


def test_a_folder_or_an_unreadable_file(world) -> None:  # rule 5
    with pytest.raises(UnknownName, match=r"^\.\n\n  it is a folder; a recipe is a YAML file"):
        load(["."])
    (world / "work" / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"^bytes\.yaml\n\n  it cannot be read"):
        load(["bytes.yaml"])


def test_a_mapping_is_a_source() -> None:  # rule 6
    recipe = load(["own.yaml", {"rollout": {"group": 4}}])
    assert recipe.settings.rollout.group == 4
    assert recipe.where("rollout.group") == "argument  group: 4"
