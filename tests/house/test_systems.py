"""Systems: (1) a folder holds a description, a plain paragraph, and an overlay or a recipe, or says why not; (2) an
overlay and a recipe name only parts of their own folder, of `parts/` and of rooms that know no system; (3) a system's
recipe trains with every part that its description names, so that it is the method and no ablation of it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from palaestra.catalogue import System, systems
from palaestra.recipe import load
from palaestra.recipe.sources import read_layers
from palaestra.registry import index
from tests.house.source_text import SYSTEMS, document, of_systems, shown, tree

FOLDERS = [path.parent for path in sorted(SYSTEMS.glob("*/system.yaml"))]
OWNERS = {
    (slot, name): target.split(".")[2].partition(":")[0]
    for slot, names in index().items()
    for name, target in names.items()
    if target.startswith("palaestra.systems.")
}


def test_every_folder_is_described() -> None:  # rule 1
    folders = [path for path in SYSTEMS.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(folders) == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_says_what_it_is(folder: Path) -> None:  # rule 1
    assert len((ast.get_docstring(tree(folder / "__init__.py")) or "").split()) >= 5
    own = [system for system in systems() if system.folder == folder.name]
    assert any(system.overlay or system.recipe for system in own) or "warm start" in own[0].title


def used(path: Path) -> set[tuple[str, str]]:
    """Slot and name of every part of a recipe layer, laid over a setup that makes it complete."""
    trees = read_layers(path)
    complete = "environment" in {key for tree in trees for key in tree.value}
    layers = [path] if complete else ["setups/rooms-tiny.yaml", path]
    written = str([tree.plain() for tree in trees])
    try:
        parts = load(layers).parts
    except Exception:  # it does not fit this setup: the text says as much
        return {key for key in OWNERS if f"'{key[1]}'" in written}
    return {(part.part.slot, part.name) for part in parts if f"'{part.name}'" in written}


@pytest.mark.parametrize("path", of_systems(), ids=shown)
def test_parts_of_other_systems_are_not_named(path: Path) -> None:  # rule 2
    others = {key for key in used(path) if OWNERS.get(key, path.parent.name) != path.parent.name}
    assert not others, f"{shown(path)} names parts of other systems: move them to palaestra/parts"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    (tmp_path / "method.yaml").write_text("advantage: gigpo\n")
    assert OWNERS["advantage", "gigpo"] == "gigpo" and ("advantage", "gigpo") in used(tmp_path / "method.yaml")


def test_descriptions_are_read() -> None:
    assert {folder.name for folder in FOLDERS} == {system.folder for system in systems()}
    assert all(document(folder / "system.yaml")["status"] for folder in FOLDERS)


# What the description names beside the parts of the recipe: a reward for another world.
ELSEWHERE = {"artist": ("reward", "function_calls"), "mars": ("reward", "game_shaping")}
COMPLETE = [each for each in systems() if each.recipe]


@pytest.mark.parametrize("system", COMPLETE, ids=lambda each: each.name)
def test_a_recipe_is_the_whole_system(system: System) -> None:  # rule 3
    assert system.recipe is not None
    recipe = load([system.recipe])
    named = {(slot, name) for slot, names in system.parts.items() if slot != "rollout" for name in names}
    named.discard(ELSEWHERE.get(system.name, ("", "")))
    assert named <= {(part.part.slot, part.name) for part in recipe.parts}
