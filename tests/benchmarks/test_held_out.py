"""What must hold of the table of recipes and what their evaluations share with their training:

1. It has every complete recipe, and what it says is what is measured now.
2. A recipe that says "held-out" shares nothing over its whole budget; the worlds whose curves are published share next
   to nothing, but for games, which are the same each time.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TABLE = json.loads((FOLDER / "results/held_out.json").read_text(encoding="utf-8"))
QUICK = ("quickstart.yaml", "artist/recipe.yaml", "dpo/recipe.yaml", "worlds/shop.yaml", "worlds/webforms.yaml")


@pytest.fixture
def held_out(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("held_out")


def test_1_all_recipes(held_out: ModuleType) -> None:
    assert sorted(TABLE) == sorted(held_out.complete())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TABLE]
)
def test_1_the_table_is_true(held_out: ModuleType, name: str) -> None:
    assert held_out.measured(name) == TABLE[name]


def test_2_held_out_is_held_out() -> None:
    said = {name: row for name, row in TABLE.items() if row["said"].endswith("held-out tasks")}
    assert all(row["shared"] == 0 for row in said.values()) and len(said) > 20
    worlds = {name: row for name, row in TABLE.items() if name.startswith("worlds/") and row["shared"]}
    others = [row for row in worlds.values() if row["environment"] not in ("openspiel", "games")]
    assert all(row["shared"] < 0.03 * row["evaluated"] for row in others)
