"""The list of long tests: (1) each line names a test that exists; (2) listed tests are marked, others are not."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import tests.long_tests
from tests.long_tests import function_of, listed, mark_long
from tests.messages import ROOT


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_1_the_list_names_tests() -> None:
    named = {tuple(function_of(line).split("::")) for line in listed()}
    known = {file: functions(file) for file, _ in named}
    assert not [f"{file}::{test}" for file, test in named if test not in known[file]]


def test_2_listed_tests_are_marked(monkeypatch) -> None:
    monkeypatch.setattr(tests.long_tests, "listed", lambda: ["a.py::f[1 x]", "a.py::g"])
    marks: dict[str, list[str]] = {}
    items = []
    for name in ("a.py::f[1 x]", "a.py::f[2]", "a.py::g[[x]\ny]", "a.py::ghost"):
        marks[name] = []
        items.append(SimpleNamespace(nodeid=name, add_marker=marks[name].append))
    mark_long(items)  # type: ignore[arg-type]
    assert [*marks.values()] == [["long"], [], ["long"], []]
