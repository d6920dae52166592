"""Systems: (1) a system is found by its name, an alias, its title or its arXiv number; (2) a search finds all words, in
names first; (3) a folder that is wrong is reported and left out, and is an error where nobody collects faults; (4) a
family that does not exist is refused, and a part of the paper has exactly one state. (5) A system works if nothing of
its paper is absent and a run on held-out tasks of a realistic world, with a pretrained model, is committed; each thing
that lacks is told. (6) A study with a verdict makes it learn, golden numbers make it a formula.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from palaestra.catalogue import search, system, systems
from palaestra.catalogue.status import FEWEST, missing, status_of
from palaestra.catalogue.systems import System, probes
from palaestra.errors import RecipeError, UnknownName

DESCRIBED: dict[str, Any] = {"paper": {"policy": {"here": "x"}, "judge": {"scripted": "y"}}}
RUN = {"models": ["SmolLM2"], "environment": "household", "evaluations": [{"eval/household/tasks": FEWEST}]}


def one(name: str, **more: Any) -> System:
    return System(name=name, folder=name, title=name.title(), **more)


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "system.yaml").write_text(text)


def test_1_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system("gigpo").name == system("2505.10978").name == system("GiGPO").name == "gigpo"
    assert system("DAPO").name == system("dapo").name == "dapo"
    known = [one("near", aliases=["Far-Away"], arxiv="2401.00001")]
    monkeypatch.setattr(sys.modules[System.__module__], "systems", lambda **_: known)
    assert system("far away").name == system("2401.00001").name == "near"
    with pytest.raises(UnknownName, match="--find nothing"):
        system("nothing")


def test_2_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(System, "text", "Prose about twins.")
    known = [one("b", when="As with zebra."), one("zebra"), one("a", aliases=["Zebra-2"])]
    assert [each.name for each in search("zebra", known)] == ["a", "zebra", "b"]
    assert [each.name for each in search("zebra TWINS", known)] == ["a", "b", "zebra"]
    assert not search("zebra lion", known)


def test_3_wrong_folders(tmp_path: Path) -> None:
    write(tmp_path, "good", "title: Good\nvariants: {twice: {title: T}}\n")
    write(tmp_path, "wrong", "title: [\n")
    write(tmp_path, "other", "title: Other\nvariants: {twice: {title: T}}\n")
    write(tmp_path, "unknown", "title: U\ncolor: red\n")
    faults: list[str] = []
    assert [each.name for each in systems(tmp_path, faults=faults)] == ["good", "twice"]
    assert [line.split(" ")[0] for line in faults] == ["systems/other", "systems/unknown", "systems/wrong"]
    assert "`twice` is in systems/good too" in faults[0] and all("\n" not in line for line in faults)
    with pytest.raises(RecipeError):
        systems(tmp_path)


def test_4_keys(tmp_path: Path) -> None:
    write(tmp_path, "a", "title: A\nfamily: [colors]\n")
    with pytest.raises(RecipeError, match="no family is called `colors`"):
        systems(tmp_path)
    write(tmp_path, "a", "title: A\npaper: {judge: {here: x, absent: y}}\n")
    with pytest.raises(RecipeError, match=r"paper\.judge"):
        systems(tmp_path)


def lacks(folder: Path, described: dict[str, Any], run: dict[str, Any] | None) -> list[str]:
    if run is not None:
        (folder / "results").mkdir(exist_ok=True)
        (folder / "results/run.json").write_text(json.dumps(run))
    return missing(folder, described, probes())


def test_5_works(tmp_path: Path) -> None:
    assert lacks(tmp_path, DESCRIBED, None) == ["no run is committed (results/run.json)"]
    assert "rooms" in probes() and lacks(tmp_path, DESCRIBED, RUN) == []
    assert status_of(tmp_path, DESCRIBED, probes()) == "works"
    absent = {"paper": {**DESCRIBED["paper"], "memory": {"absent": "no store yet"}}}
    assert lacks(tmp_path, absent, RUN) == ["memory is absent: no store yet"]
    assert "`paper`" in lacks(tmp_path, {}, RUN)[0]
    assert lacks(tmp_path, DESCRIBED, {**RUN, "environment": "rooms"}) == ["its run plays `rooms`, a probe"]
    assert lacks(tmp_path, DESCRIBED, {**RUN, "models": []}) == ["its run has no pretrained model"]
    assert not lacks(tmp_path, {**DESCRIBED, "language": False}, {**RUN, "models": []})
    few = {**RUN, "evaluations": [{"eval/household/tasks": FEWEST - 1}]}
    assert lacks(tmp_path, DESCRIBED, few) == [f"its run has no evaluation on {FEWEST} held-out tasks"]


def test_6_levels(tmp_path: Path) -> None:
    assert status_of(tmp_path, {}, ()) == "runs"
    (tmp_path / "golden.yaml").touch()
    assert status_of(tmp_path, {}, ()) == "formula"
    assert status_of(tmp_path, {"findings": "too few seeds, see x; not measured, see y"}, ()) == "formula"
    assert status_of(tmp_path, {"findings": "too few seeds, see x; not as expected, see y"}, ()) == "learns"
