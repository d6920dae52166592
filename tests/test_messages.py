"""Stored messages: (1) every entry belongs to a test that exists; (2) another wording, a message without its word and a
message that nobody stored fail; (3) places of this machine are left out.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from palaestra.errors import InvalidData
from tests import messages
from tests.messages import ROOT, plain, stored, told


@cache
def functions_in(file: str) -> set[str]:
    code = ast.parse((ROOT / file).read_text(encoding="utf-8")) if (ROOT / file).exists() else ast.Module([], [])
    return {node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef)}


def homeless(tests: list[str]) -> list[str]:
    names = [test.partition("[")[0].rpartition("::") for test in tests]
    return [f"{file}::{name}" for file, _, name in names if name not in functions_in(file.partition("::")[0])]


def test_1_entries_belong_to_tests() -> None:
    assert len(stored()) > 50
    assert not homeless([*stored()]), f"delete these entries from {messages.FILE.name}"
    here = f"tests/{Path(__file__).name}"
    assert homeless([f"{here}::test_1_entries_belong_to_tests[a::b]", f"{here}::test_9", "gone.py::test_1"]) == [
        f"{here}::test_9",
        "gone.py::test_1",
    ]


def refuse(what: str) -> None:
    raise InvalidData(where="here", what=what, remedy="Do it.")


@pytest.mark.parametrize(
    ("what", "word", "entry"),
    [("3 rows", "4", "here\n\n  3 rows\n\n  Do it."), ("3 rows", "3", "here\n\n  3 row"), ("3 rows", "3", None)],
)
def test_2_what_fails(what: str, word: str, entry: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(messages.WRITE, raising=False)
    monkeypatch.setattr(messages, "stored", lambda: {"here": [entry] if entry else []})
    monkeypatch.setattr(messages, "counted", {})
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "here (call)")
    with pytest.raises(AssertionError), told(InvalidData, word):
        refuse(what)


def test_2_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(messages.WRITE, raising=False)
    monkeypatch.setattr(messages, "stored", lambda: {"here": ["here\n\n  3 rows\n\n  Do it."]})
    monkeypatch.setattr(messages, "counted", {})
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "here (call)")
    with told(InvalidData, "3 rows") as caught:
        refuse("3 rows")
    assert caught.value.remedy == "Do it."


def test_3_places(tmp_path: Path) -> None:
    assert plain(f"{ROOT}/recipes/a.yaml and {tmp_path}/b.yaml  \nc") == "recipes/a.yaml and TMP/b.yaml\nc"
