"""What a reader meets: (1) every file opens with what it knows; (2) public functions and classes have a
docstring; (3) `__all__` is sorted and every name in it exists; (4) parts compose: no class inherits, but from
exceptions, enums, torch modules, protocols and other types of libraries.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source_text import module_of, package_files, shown, tree

FILES = package_files()
EXPORTING = [path for path in FILES if re.search("^__all__", path.read_text(encoding="utf-8"), re.M)]
# An exception, the pydantic model that refuses unknown keys, and the mark of a group of options.
OWN_ROOTS = {"PalaestraError", "Section", "OptionGroup"}


def test_files_open_with_what_they_know() -> None:  # rule 1
    assert not [shown(path) for path in FILES if tree(path).body and not ast.get_docstring(tree(path))]


def undocumented(path: Path) -> Iterator[str]:
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node) and not any("overload" in ast.unparse(d) for d in node.decorator_list):
                yield f"{shown(path)}:{node.lineno} {node.name}"


def test_public_names_are_documented() -> None:  # rule 2
    assert not [name for path in FILES for name in undocumented(path)]


@pytest.mark.parametrize("path", EXPORTING, ids=shown)
def test_exports_exist(path: Path) -> None:  # rule 3
    module = importlib.import_module(module_of(path))
    assert list(module.__all__) == sorted(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]


def classes() -> list[tuple[str, str, list[str]]]:
    """Place, name and bases of every class; names may repeat."""
    return [
        (f"{shown(path)}:{node.lineno}", node.name, [ast.unparse(parent).rpartition(".")[2] for parent in node.bases])
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]


def protocols(known: list[tuple[str, str, list[str]]]) -> set[str]:
    return {name for _, name, bases in known if any(base.startswith("Protocol") for base in bases)}


def test_classes_do_not_inherit_from_ours() -> None:  # rule 4
    known = classes()
    ours, allowed = {name for _, name, _ in known}, OWN_ROOTS | protocols(known)
    assert not [
        f"{place} {name}({base})"
        for place, name, bases in known
        for base in bases
        if base in ours and base not in allowed
    ]
