"""docs/recipes.md holds: (1) its Python blocks run, one after the other; (2) its YAML blocks are recipes over the
first one; (3) its overrides are accepted; (4) every packaged recipe that is complete resolves and comes back from JSON.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.recipe import Recipe, load, packaged

PAGE = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
CARTPOLE, *OTHERS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TABLE = re.findall(r"^\| `([^`]+=[^`]+)` \|", PAGE, re.MULTILINE)
COMPLETE = [name for name, path in packaged().items() if re.search(r"(?ms)^environment:.*^policies:", path.read_text())]


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 1
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "docs/recipes.md", "exec"), names)


@pytest.mark.parametrize("block", OTHERS, ids=lambda block: block.splitlines()[0])
def test_yaml_blocks_are_recipes(block: str, tmp_path: Path) -> None:  # rule 2
    (tmp_path / "cartpole.yaml").write_text(CARTPOLE)
    (tmp_path / "block.yaml").write_text(block)
    assert "block.yaml:" in load([tmp_path / "cartpole.yaml", tmp_path / "block.yaml"]).explain()


@pytest.mark.parametrize("override", TABLE)
def test_overrides_are_accepted(override: str, tmp_path: Path) -> None:  # rule 3
    (tmp_path / "cartpole.yaml").write_text(CARTPOLE)
    first = ["regularizers=entropy"] if override.startswith("regularizers.0") else []
    override = override.replace("'", "")
    assert "command line" in load([tmp_path / "cartpole.yaml"], [*first, override]).explain()


def test_the_table_was_found() -> None:
    assert len(TABLE) == 8 and len(OTHERS) == 2


@pytest.mark.parametrize("name", COMPLETE)
def test_packaged_recipes_resolve(name: str) -> None:  # rule 4
    recipe = load([name])
    assert Recipe.from_json(recipe.to_json()).explain() == recipe.explain()
