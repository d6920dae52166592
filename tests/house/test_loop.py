"""The loop stays small and knows no method: (1) under 200 lines, stages and iteration together; (2) no name of a method
part stands in it; (3) it imports no room of methods. (4) Rules 2 and 3 can fail.
"""

from __future__ import annotations

import ast
import builtins

from palaestra.registry import index
from tests.house.source_text import PACKAGE, tree

LOOP = PACKAGE / "training" / "loop.py"
METHOD_ROOMS = ("parts", "replay", "systems")
METHOD_SLOTS = ("advantage", "loss", "weights", "selection")
LINES = 200


def methods_named(code: ast.Module, methods: set[str]) -> set[str]:
    """Names of parts that stand in a file as texts, identifiers or attributes."""
    nodes = list(ast.walk(code))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    identifiers = {node.id for node in nodes if isinstance(node, ast.Name)}
    identifiers |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return (texts & methods) | (identifiers & (methods - set(dir(builtins))))


def method_rooms(code: ast.Module) -> set[str]:
    """Modules of rooms of methods that a file imports."""
    imported = {node.module or "" for node in ast.walk(code) if isinstance(node, ast.ImportFrom)}
    return {module for module in imported if module.split(".")[1:2] and module.split(".")[1] in METHOD_ROOMS}


def test_the_loop_is_short() -> None:  # rule 1
    assert len(LOOP.read_text(encoding="utf-8").splitlines()) < LINES


def test_the_loop_names_no_method() -> None:  # rule 2
    methods = {name for slot in METHOD_SLOTS for name in index().get(slot, {})}
    assert methods, "no method part is registered, so this test says nothing"
    assert not methods_named(tree(LOOP), methods)


def test_the_loop_imports_no_method() -> None:  # rule 3
    assert not method_rooms(tree(LOOP))


def test_the_rules_can_fail() -> None:  # rule 4
    code = ast.parse("from palaestra.systems.gigpo import gigpo\nx = 'grpo'\ny.dapo\nall(z)")
    assert methods_named(code, {"grpo", "dapo", "all", "ppo"}) == {"grpo", "dapo"}
    assert method_rooms(code) == {"palaestra.systems.gigpo"}
