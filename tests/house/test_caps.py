"""Sizes: (1) a file has at most 600 lines; (2) a function at most 80; (3) the list of exceptions only shrinks.

The list stands in exceptions.yaml beside this file.
"""

from __future__ import annotations

from pathlib import Path

from tests.house.source_text import document, functions, python_files, shown

FILE_CAP, FUNCTION_CAP = 600, 80
EXCEPTIONS = document(Path(__file__).with_name("exceptions.yaml"))
FILES = python_files("palaestra", "tests", "benchmarks", "docs")


def file_lengths() -> dict[str, int]:
    return {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}


def function_lengths() -> dict[str, int]:
    return {
        f"{shown(path)}::{name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for name, node in functions(path)
    }


def over(lengths: dict[str, int], cap: int, allowed: dict[str, int]) -> dict[str, int]:
    return {name: lines for name, lines in lengths.items() if lines > allowed.get(name, cap)}


def unneeded(lengths: dict[str, int], cap: int, allowed: dict[str, int]) -> dict[str, str]:
    """Exceptions that are larger than what they except."""
    return {
        name: f"is {lengths.get(name, 0)} lines long, the exception says {lines}"
        for name, lines in allowed.items()
        if lengths.get(name, 0) <= cap or lengths[name] < lines
    }


def test_files_are_short() -> None:  # rule 1
    assert not over(file_lengths(), FILE_CAP, EXCEPTIONS["files"]), "split them by what they know"


def test_functions_are_short() -> None:  # rule 2
    assert not over(function_lengths(), FUNCTION_CAP, EXCEPTIONS["functions"]), "name the pieces"


def test_exceptions_only_shrink() -> None:  # rule 3
    assert not unneeded(file_lengths(), FILE_CAP, EXCEPTIONS["files"]), "update tests/house/exceptions.yaml"
    assert not unneeded(function_lengths(), FUNCTION_CAP, EXCEPTIONS["functions"])


def test_the_rules_can_fail() -> None:
    assert over({"a": 401, "b": 450, "c": 400}, 400, {"b": 450}) == {"a": 401}
    assert set(unneeded({"a": 399, "b": 420, "c": 430}, 400, {"a": 410, "b": 420, "c": 440, "gone": 500})) == {
        "a",
        "c",
        "gone",
    }
