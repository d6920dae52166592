"""Sizes: (1) a file has at most 600 lines; (2) a function at most 80; (3) the list of exceptions only shrinks, and
stands in exceptions.yaml beside this file; (4) a folder of the package has at most 20 modules: a room with more has
several subjects; (5) a file imports at most 20 modules of the package: one that needs more does the work of several;
(6) `data` and `algebra` stay small, since what one room alone uses lives in that room. (7) Each rule can fail.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.house.source_text import PACKAGE, document, functions, package_files, python_files, shown, tree

FILE_CAP, FUNCTION_CAP, FOLDER_CAP, IMPORT_CAP = 600, 80, 20, 20
ROOM_CAPS = {"data": 1585, "algebra": 650}  # lines of code without docstrings and comments
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


def modules_of_folders(files: Iterable[Path]) -> Counter[str]:
    return Counter(path.parent.as_posix() for path in files if path.name != "__init__.py")


def test_folders_are_small() -> None:  # rule 4
    found = modules_of_folders(path.relative_to(PACKAGE.parent) for path in package_files())
    assert not over(found, FOLDER_CAP, {}), "find the subject that does not belong, and give it a folder"


def imported(code: ast.Module) -> set[str]:
    """Modules of the package that a file names in its imports."""
    nodes = [node for node in ast.walk(code) if isinstance(node, ast.Import | ast.ImportFrom)]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module for module in modules if module.partition(".")[0] == "palaestra"}


def test_files_import_little() -> None:  # rule 5
    assert not over({shown(path): len(imported(tree(path))) for path in package_files()}, IMPORT_CAP, {})


def lines_of_code(text: str) -> int:
    """Lines that are neither empty nor a comment nor in a docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            prose.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(1 for number, line in lines if number not in prose and line.strip() and line.strip()[0] != "#")


def test_rooms_below_all_others_stay_small() -> None:  # rule 6
    files = {room: [path for path in package_files() if PACKAGE / room in path.parents] for room in ROOM_CAPS}
    found = {room: sum(lines_of_code(path.read_text("utf-8")) for path in files[room]) for room in files}
    assert min(found.values()) > 0
    assert not {room: lines for room, lines in found.items() if lines > ROOM_CAPS[room]}


def test_the_rules_can_fail() -> None:  # rule 7
    assert over({"a": 401, "b": 450, "c": 400}, 400, {"b": 450}) == {"a": 401}
    assert set(unneeded({"a": 399, "b": 420, "c": 430}, 400, {"a": 410, "b": 420, "c": 440, "gone": 500})) == {
        "a",
        "c",
        "gone",
    }
    files = [Path("a/__init__.py"), *(Path(f"a/m{number}.py") for number in range(21)), Path("a/b/c.py")]
    assert over(modules_of_folders(files), FOLDER_CAP, {}) == {"a": 21}
    text = "import palaestra.a\nfrom palaestra.b import c, d\nimport torch\nfrom .e import f"
    assert imported(ast.parse(text)) == {"palaestra.a", "palaestra.b"}
    assert lines_of_code('"""What\nit is."""\n\n# why\ndef f():\n    """Docs."""\n    return 1  # one\n') == 2
