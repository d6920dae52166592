"""Tested versions: (1) they are those of constraints.txt, and the extras install them; (2) another version gives one
line in the log, once; (3) every adapter is in the table, and says so when it is made."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from palaestra.envs.adapters import versions
from palaestra.envs.adapters.versions import TESTED, note_version

ROOT = Path(__file__).parents[3]
ADAPTERS = ROOT / "palaestra" / "envs" / "adapters"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_versions_are_pinned() -> None:  # rule 1
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {plain(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    assert {name: pinned[plain(one.package)] for name, one in TESTED.items()} == {
        name: one.version for name, one in TESTED.items()
    }


def test_extras_allow_them() -> None:  # rule 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {"": project["dependencies"], **project["optional-dependencies"]}
    for name, one in TESTED.items():
        known = {plain(each.name): each for each in map(Requirement, wanted[one.extra])}
        if name != "trl_class":  # plays classes without TRL
            assert known[plain(one.package)].specifier.contains(one.version), name
    verifiers = next(each for each in map(Requirement, wanted["adapters"]) if each.name == "verifiers")
    assert not verifiers.specifier.contains("0.5.0") and not verifiers.specifier.contains("0.3.1")


def test_another_version_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # rule 2
    monkeypatch.setattr(versions, "installed", lambda package: "0.5.1")
    note_version.cache_clear()
    try:
        note_version("verifiers")
        note_version("verifiers")
        assert caplog.messages == ["environment verifiers: tested with verifiers 0.4.0, found 0.5.1."]
        monkeypatch.setattr(versions, "installed", lambda package: None)
        note_version.cache_clear()
        note_version("trl_class")
        assert len(caplog.messages) == 1  # what is not installed is not another version
    finally:
        note_version.cache_clear()


def test_every_adapter_says_so() -> None:  # rule 3
    registered = {
        name: path
        for path in ADAPTERS.glob("**/*.py")
        for name in re.findall(r'@register\(\s*"environment",\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert registered.keys() == TESTED.keys()
    for name, path in registered.items():
        folder = "\n".join(one.read_text(encoding="utf-8") for one in path.parent.glob("*.py"))
        assert f'note_version("{name}")' in folder or "note_version(NAME)" in folder, name
