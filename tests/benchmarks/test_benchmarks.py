"""Every benchmark runs at a tiny size. (1) Against TRL: both sides do the same work, and the file has its fields.
(2) Turns: both variants play and learn the same; each id is computed once; file and plot are written.
(3) The machine is described. (4) Committed results keep the limits that they name.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [module.__name__, "--out", str(out), *options])
    module.main()
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["plain", "uneven", "turns"])
def test_against_trl(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:  # rule 1
    module = load("vs_trl")
    small: dict[str, Any] = {"hidden": 16, "layers": 1, "vocabulary": 64, "groups": 2, "group": 3, "prompt": 6}
    shape: dict[str, dict[str, Any]] = {
        "plain": {"response": (5, 5)},
        "uneven": {"response": (2, 9)},
        "turns": {"turns": 3, "response": (1, 4)},
    }
    monkeypatch.setattr(module, "CASES", {"small": module.Case(**small, **shape[kind])})
    content = run(module, monkeypatch, tmp_path / "vs_trl.json", "--steps", "4", "--skip", "1", "--cases", "small")
    row = content["rows"]["small"]
    assert row["ratio"] > 0 and row["trl_wall_milliseconds"] > 0 and row["ours_processor_milliseconds"] > 0
    assert row["first_gradient_difference"] < 1e-3  # the deviation's epsilon is 1e-4 there and 1e-6 here
    assert row["gradient_norm_difference"] < 1e-3
    assert row["last_weight_difference"] < 1e-3


@pytest.mark.smoke
def test_turns(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # rule 2
    module = load("turns")
    content = run(module, monkeypatch, tmp_path / "turns.json", "--turns", "1", "6", "--repeats", "1", "--hidden", "16")
    for row in content["rows"]:
        assert row["same_tokens"]
        assert row["gradient_norm_difference"] < 1e-3
        assert row["engine_tokens_per_token_once"] <= content["limits"]["tokens"]
        assert row["training_tokens_once"] == row["episode_tokens"]
        assert row["ratio"] > 0 and row["rollout_ratio"] > 0 and row["training_ratio"] > 0
    assert content["rows"][-1]["engine_tokens_per_token_reread"] > 2
    assert (tmp_path / "turns.png").stat().st_size > 1000


def test_machine(load: Load) -> None:  # rule 3
    described = load("machine").describe(("torch", "no-such-package"))
    assert {"cpu", "cores", "threads", "system", "python"} <= set(described)
    assert described["torch"] and described["no-such-package"] is None


def test_committed_results() -> None:  # rule 4
    trl = json.loads((FOLDER / "results" / "vs_trl.json").read_text())
    assert trl["rows"][trl["headline"]]["ratio"] >= trl["limit"]
    assert all(row["first_gradient_difference"] < 1e-3 for row in trl["rows"].values())
    turns = json.loads((FOLDER / "results" / "turns.json").read_text())
    most, limits = turns["rows"][-1], turns["limits"]
    assert most["engine_tokens_per_token_once"] <= limits["tokens"]
    assert min(most["ratio"], most["rollout_ratio"], most["training_ratio"]) >= limits["speed"]
    table = json.loads((FOLDER / "results" / "table_time.json").read_text())
    assert table["ratio"] <= table["limit"] and table["rows"] >= 10**6
    assert len(set(table["commits"].values())) == 2 and all(table["commits"].values())
