"""Folders of systems: (1) each holds a description, a plain paragraph of at least five words, and an
overlay or a recipe, or its title says that it is a warm start. (2) The rule can fail. What recipes of systems may name:
test_recipes.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from palaestra.catalogue import System, systems
from tests.house.source_text import SYSTEMS, tree


def faults(folder: Path, known: Iterable[System]) -> Iterator[str]:
    """What a folder lacks."""
    own = [system for system in known if system.folder == folder.name]
    if not own:
        yield f"{folder.name}: no system.yaml"
        return
    if len((ast.get_docstring(tree(folder / "__init__.py")) or "").split()) < 5:
        yield f"{folder.name}: no paragraph"
    if not any(system.overlay or system.recipe for system in own) and "warm start" not in own[0].title:
        yield f"{folder.name}: neither an overlay nor a recipe"


def test_1_a_folder_says_what_it_is() -> None:
    folders = [path for path in sorted(SYSTEMS.iterdir()) if path.is_dir() and path.name != "__pycache__"]
    assert len(folders) >= 70
    assert not [fault for folder in folders for fault in faults(folder, systems())]


def test_2_the_rule_can_fail(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    folder.mkdir()
    (folder / "system.yaml").write_text("title: Nowhere\n")
    (folder / "__init__.py").write_text('"""Signs."""\n')
    bare = System(name="nowhere", folder="nowhere", title="Nowhere")
    assert [*faults(folder, [])] == ["nowhere: no system.yaml"]
    assert [*faults(folder, [bare])] == [
        "nowhere: no paragraph",
        "nowhere: neither an overlay nor a recipe",
    ]
