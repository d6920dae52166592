"""`benchmarks/zero_shot.py`.

1. Shares of acts, turns and tokens are counted over all episodes; a share that no world reports is None.
2. Every preset of a world is one of its names, and a run writes the numbers with the commit.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from palaestra.envs.worlds.household.world import Household
from palaestra.evaluation.scripted import play_scripted
from palaestra.rollout.settings import RolloutSettings

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def zero_shot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("zero_shot")


def test_acts_are_counted(zero_shot: ModuleType) -> None:  # rule 1
    world = Household()
    played = play_scripted("household", {}, "expert", world.tasks("eval", 3, 0), settings=RolloutSettings(max_turns=60))
    found = zero_shot.of_acts(played)
    assert found["readable"] == found["executable"] == 1 and found["tokens"] == 0
    assert found["turns"] == round(sum(len(one.steps) for one in played) / 3, 2)
    assert zero_shot.of_acts([])["executable"] is None


def test_the_table_has_a_row_for_each_world(zero_shot: ModuleType) -> None:
    row = {"success": None, "readable": 0.5, "executable": 0.25, "turns": 3.0, "tokens": 12.0}
    lines = zero_shot.table({"shop": row}).splitlines()
    assert lines[1].split() == ["shop", "-", "0.5", "0.25", "3", "12"]
    assert "household" in zero_shot.names() and "searchqa" in zero_shot.names()


@pytest.mark.slow
def test_a_model_is_measured(zero_shot: ModuleType, smollm2: str, tmp_path: Path) -> None:  # rule 2
    file = zero_shot.main(["reasoning_gym", "--tasks", "1", "--out", str(tmp_path), "--model", smollm2])
    (row,) = json.loads(file.read_text())["worlds"].values()
    assert row["episodes"] == 1 and row["turns"] == 1 and row["tokens"] > 0 and len(row["commit"]) == 40
