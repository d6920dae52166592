"""What a reader meets: (1) every file opens by saying what it is for, never what it knows nothing of; (2) public
functions and classes have docstrings; (3) `__all__` is sorted and every name in it exists; (4) parts compose: no class
inherits, but from exceptions, enums, torch modules, protocols and other types of libraries. (5) Each rule can fail.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from types import ModuleType

from tests.house.source_text import module_of, package_files, shown, tree

FILES = package_files()
EXPORTING = [path for path in FILES if re.search("^__all__", path.read_text(encoding="utf-8"), re.M)]
# An exception, the pydantic model that refuses unknown keys, and the mark of a group of options.
OWN_ROOTS = {"PalaestraError", "Section", "OptionGroup"}


def boasts(text: str) -> bool:
    """Whether a head says what its file does not know, in place of what the file is for."""
    return "knows nothing" in " ".join(text.lower().split())


def test_files_say_what_they_are_for() -> None:  # rule 1
    heads = {shown(path): ast.get_docstring(tree(path)) or "" for path in FILES if tree(path).body}
    assert not [place for place, text in heads.items() if not text]
    assert not [place for place, text in heads.items() if boasts(text)]


def undocumented_in(code: ast.Module, place: str) -> Iterator[str]:
    for node in code.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node) and not any("overload" in ast.unparse(d) for d in node.decorator_list):
                yield f"{place}:{node.lineno} {node.name}"


def test_public_names_are_documented() -> None:  # rule 2
    assert not [name for path in FILES for name in undocumented_in(tree(path), shown(path))]


def faults_of_exports(module: ModuleType) -> list[str]:
    missing = [f"{module.__name__}.{name} does not exist" for name in module.__all__ if not hasattr(module, name)]
    return missing + ([] if list(module.__all__) == sorted(module.__all__) else [f"{module.__name__} is not sorted"])


def test_exports_exist() -> None:  # rule 3
    assert EXPORTING
    assert not [fault for path in EXPORTING for fault in faults_of_exports(importlib.import_module(module_of(path)))]


def classes() -> list[tuple[str, str, list[str]]]:
    """Place, name and bases of every class; names may repeat."""
    return [
        (f"{shown(path)}:{node.lineno}", node.name, [own_name(ast.unparse(parent)) for parent in node.bases])
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]


def own_name(base: str) -> str:
    """The last part of a base's name; empty for a class of torch, which may have the name of one of ours."""
    return "" if base.startswith("torch.") else base.rpartition(".")[2]


def protocols(known: list[tuple[str, str, list[str]]]) -> set[str]:
    return {name for _, name, bases in known if any(base.startswith("Protocol") for base in bases)}


def heirs(known: list[tuple[str, str, list[str]]]) -> list[str]:
    ours, allowed = {name for _, name, _ in known}, OWN_ROOTS | protocols(known)
    return [
        f"{place} {name}({base})"
        for place, name, bases in known
        for base in bases
        if base in ours and base not in allowed
    ]


def test_classes_do_not_inherit_from_ours() -> None:  # rule 4
    assert not heirs(classes())


def test_the_rules_can_fail() -> None:  # rule 5
    code = ast.parse("class A:\n    pass\ndef _f(): ...\ndef g():\n    'says'")
    assert [line.rpartition(" ")[2] for line in undocumented_in(code, "here")] == ["A"]
    assert boasts("Plays games. Knows\nnothing of rewards.") and not boasts("Plays games.")
    module = ModuleType("made")
    module.__all__, module.b = ["b", "a"], 1  # type: ignore[attr-defined]
    assert faults_of_exports(module) == ["made.a does not exist", "made is not sorted"]
    known = [("x:1", "P", ["Protocol"]), ("x:2", "A", ["P"]), ("x:3", "B", ["A"]), ("x:4", "C", ["Module"])]
    assert heirs(known) == ["x:3 B(A)"]
