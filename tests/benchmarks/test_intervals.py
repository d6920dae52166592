"""Committed intervals: (1) each is what the code computes now from the values of the seeds; (2) an interval or a
verdict that is not is found; (3) where no values of seeds are stored, the file names the method.
"""

from __future__ import annotations

import copy
import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMPARISONS = sorted(ROOT.glob("palaestra/systems/*/results/*/comparison.json"))
FEW = COMPARISONS[::15]


@pytest.fixture
def intervals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("intervals")


def is_as_computed(intervals: ModuleType, path: Path) -> bool:
    after, made = intervals.renewed(path)
    return (
        not intervals.differ(json.loads(path.read_text()), after)
        and path.with_suffix(".txt").read_text() == made.text()
    )


@pytest.mark.parametrize("path", FEW, ids=lambda path: path.parent.name)
def test_some_intervals_are_as_computed(intervals: ModuleType, path: Path) -> None:  # rule 1
    assert is_as_computed(intervals, path), "run benchmarks/intervals.py"


@pytest.mark.slow
def test_all_intervals_are_as_computed(intervals: ModuleType) -> None:  # rule 1
    every = [*intervals.comparisons()]
    assert set(every) > set(COMPARISONS)
    assert not [path for path in every if not is_as_computed(intervals, path)], "run benchmarks/intervals.py"


def first_difference(found: dict[str, Any]) -> dict[str, Any]:
    return next(iter(found["differences"].values()))["final"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: first_difference(found)["bootstrap"].update(low=0.0),
        lambda found: first_difference(found).update(verdict="higher and higher"),
        lambda found: found.pop("method"),
        lambda found: next(iter(found["arms"].values()))["curve"]["low"].reverse(),
    ],
)
def test_what_is_not_as_computed_is_found(
    intervals: ModuleType, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:  # rule 2
    path = tmp_path / "comparison.json"
    before = json.loads(FEW[0].read_text())
    shutil.copyfile(FEW[0].with_suffix(".txt"), path.with_suffix(".txt"))
    change(found := copy.deepcopy(before))
    path.write_text(json.dumps(found))
    assert not is_as_computed(intervals, path)
    assert not intervals.differ(intervals.renewed(path)[0], before)


def entries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"mean", "low", "high"} <= value.keys():
            yield value
        else:
            for inner in value.values():
                yield from entries(inner)


def test_other_intervals_name_their_method() -> None:  # rule 3
    files = [
        path
        for folder in ("palaestra/systems", "benchmarks/results")
        for kind in ("measures", "spikes")
        for path in (ROOT / folder).rglob(f"{kind}.json")
    ]
    found = [entry for path in files for entry in entries(json.loads(path.read_text()))]
    assert len(found) > 1000
    assert {entry.get("method") for entry in found} <= {"percentile", "BCa"}
