"""Spikes of a study's runs: (1) what counts as one; (2) arms are paired by seed, also beyond nine of them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.catalogue import Study

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("spikes")


def test_1_what_counts(module: Any) -> None:
    found = module.spikes(np.array([1.0, 2.0, 2.0, 6.0, 6.1]), times=3.0)
    assert found == {"largest": 6.1, "largest_over_median": 3.05, "share": 0.2}
    assert module.spikes(np.zeros(3), times=3.0) == {"largest": 0.0, "largest_over_median": 0.0, "share": 0.0}


def test_2_paired_by_seed(module: Any, tmp_path: Path) -> None:
    for arm, more in (("calm", 0.0), ("wild", 2.0)):
        for seed in range(1, 11):
            folder = tmp_path / "runs" / arm / f"seed-{seed}"
            folder.mkdir(parents=True)
            lines = [{"step": 1, "policy/grad_norm": float(seed)}, {"step": 2, "policy/grad_norm": seed + more}]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    study = Study(
        name="s",
        title="s",
        method="dr_mas",
        expected="",
        claims=["wild above calm"],
        setup="s",
        arms={"calm": [], "wild": []},
        reference="calm",
    )
    found = module.measured(study, tmp_path, times=3.0)["policy/grad_norm"]["largest"]
    assert (found["calm"]["mean"], found["wild"]["mean"]) == (5.5, 7.5)
    assert (found["wild"]["more"], found["wild"]["more_low"], found["wild"]["more_high"]) == (2.0, 2.0, 2.0)
    assert "more" not in found["calm"]
