"""The loop stays small and knows no method: (1) under 200 lines, the stages and the iteration together; (2) no name of a
method part stands in it;
(3) it imports no room of methods.
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


def test_the_loop_is_short() -> None:  # rule 1
    assert len(LOOP.read_text(encoding="utf-8").splitlines()) < LINES


def test_the_loop_names_no_method() -> None:  # rule 2
    nodes = list(ast.walk(tree(LOOP)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    identifiers = {node.id for node in nodes if isinstance(node, ast.Name)}
    identifiers |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    methods = {name for slot in METHOD_SLOTS for name in index().get(slot, {})}
    assert methods, "no method part is registered, so this test says nothing"
    assert not texts & methods
    assert not identifiers & (methods - set(dir(builtins)))


def test_the_loop_imports_no_method() -> None:  # rule 3
    imported = {node.module or "" for node in ast.walk(tree(LOOP)) if isinstance(node, ast.ImportFrom)}
    assert not {module for module in imported if module.split(".")[1:2] and module.split(".")[1] in METHOD_ROOMS}
