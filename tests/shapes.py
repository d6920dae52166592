"""Checks the types in signatures at run time, shapes of tensors included, in the modules that `check_signatures` names.

jaxtyping has an import hook for this, too. It gives every function a scope of its own for the names of dimensions, and
checks the parameters of each call twice. Here only functions whose signature has a shape get a scope, and each call is
checked once: tests spent a tenth of their time in these checks.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from beartype import beartype
from jaxtyping import jaxtyped

SHAPE = re.compile(r"\b(Float|Int|Bool|Shaped|Num|Real|Inexact|Complex|UInt)\[")
MARK = "signature_checked_by_tests"
TAG = "shapes1"  # of the compiled files; another number when the way of marking changes
F = TypeVar("F", bound=Callable[..., Any])
Function = ast.FunctionDef | ast.AsyncFunctionDef


def checked(function: F) -> F:
    """The function, which raises if an argument or its result has not the type and shape of its signature."""
    told = beartype(function)
    if not any(SHAPE.search(str(annotation)) for annotation in function.__annotations__.values()):
        return told

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jaxtyped("context"):  # in a signature, one name of a dimension is one number
            return told(*args, **kwargs)

    return call  # type: ignore[return-value]


def _checked_fields(cls: type) -> type:
    """The dataclass, whose constructor is checked."""
    cls.__init__ = checked(cls.__init__)  # type: ignore[misc]
    return cls


class _Marks(ast.NodeTransformer):
    """Decorates each function of a module or class, inner functions if they have shapes, and dataclasses."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._marked(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._marked(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before, self._inside = self._inside, False
        self.generic_visit(node)
        self._inside = before
        if any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            node.decorator_list.insert(0, _name(f"{MARK}._checked_fields", node))
        return node

    def _marked(self, node: Function) -> ast.AST:
        if not self._inside or SHAPE.search(ast.unparse(node.args) + ast.unparse(node.returns or ast.Constant(None))):
            node.decorator_list.append(_name(f"{MARK}.checked", node))
        before, self._inside = self._inside, True
        self.generic_visit(node)
        self._inside = before
        return node


def _name(dotted: str, beside: ast.stmt) -> ast.expr:
    found = ast.parse(dotted, mode="eval").body
    for node in ast.walk(found):
        ast.copy_location(node, beside)
    return found


class _Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        tree = ast.parse(importlib.util.decode_source(data), path)
        return compile(_Marks().visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: Any) -> None:
        setattr(module, MARK, sys.modules[__name__])
        own = functools.partial(importlib.util.cache_from_source, optimization=TAG)
        with mock.patch("importlib._bootstrap_external.cache_from_source", lambda path, **_: own(path)):
            super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == one or name.startswith(f"{one}.") for one in self._modules):
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.origin and isinstance(found.loader, importlib.machinery.SourceFileLoader):
            found.loader = _Loader(name, str(Path(found.origin)))
        return found


def check_signatures(modules: Sequence[str]) -> None:
    """Check the signatures of these modules, and of those inside of them, when they are imported from now on."""
    sys.meta_path.insert(0, _Finder(modules))
