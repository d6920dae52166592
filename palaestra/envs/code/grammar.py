"""A small grammar of Python expressions over one variable `x`: read by a list of what is allowed, worked out here.

Knows numbers, strings, lists and what Python makes of them. Knows nothing of tasks or tests. No text is run: a tree
that has anything else in it is refused, and values that grow large are faults.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

LONGEST = 120  # characters of an expression
MOST = 1000  # characters or items of a value
LARGEST = 10**18  # of a number
WRITTEN = re.compile(r"[A-Za-z0-9 +\-*/%()\[\].,:'\"]*")
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "len": len,
    "max": max,
    "min": min,
    "sorted": sorted,
    "sum": sum,
}
METHODS = ("upper", "lower")  # of strings


class Unreadable(Exception):
    """The text is no expression of the grammar; says why."""


class Fault(Exception):
    """The expression has no value here; says why, as Python would."""


@functools.lru_cache(maxsize=16384)
def read(text: str) -> ast.expr:
    """The tree of an expression. Raises: Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable("too long")
    if not WRITTEN.fullmatch(text):
        raise Unreadable("not understood")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable("not understood") from None
    _check(tree)
    return tree


def evaluate(tree: ast.expr, x: Any) -> Any:
    """The value where `x` is this. Raises: Fault."""
    try:
        return _value(tree, x)
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise Fault(f"{type(fault).__name__}: {fault}") from None


def _check(node: ast.expr) -> None:
    """Raises: Unreadable, for whatever is not in the grammar."""
    match node:
        case ast.Name(id="x"):
            return
        case ast.Constant(value=value) if type(value) is str or (type(value) is int and value <= LARGEST):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.List(elts=elements):
            inner = elements
        case ast.Call(func=ast.Name(id=name), args=inner, keywords=[]) if name in FUNCTIONS and inner:
            pass
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if name in METHODS:
            inner = [value]
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            inner = [value, *(part for part in (lower, upper, step) if part is not None)]
        case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Tuple):
            inner = [value, index]
        case _:
            raise Unreadable("not understood")
    for one in inner:
        _check(one)


def _value(node: ast.expr | None, x: Any) -> Any:
    match node:
        case None:
            return None
        case ast.Name():
            return x
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_applied(type(op), _value(left, x), _value(right, x)))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, x)
        case ast.List(elts=elements):
            return [_value(one, x) for one in elements]
        case ast.Call(func=ast.Name(id=name), args=args):
            return _bounded(FUNCTIONS[name](*(_value(one, x) for one in args)))
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            text = _value(value, x)
            if not isinstance(text, str):
                raise Fault(f"AttributeError: '{type(text).__name__}' object has no attribute '{name}'")
            return getattr(text, name)()
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            return _value(value, x)[_value(lower, x) : _value(upper, x) : _value(step, x)]
        case ast.Subscript(value=value, slice=index):
            return _value(value, x)[_value(index, x)]
    raise AssertionError(ast.dump(node))  # `read` lets nothing else through


def _applied(op: type[ast.operator], left: Any, right: Any) -> Any:
    if op is ast.Mult:  # before it is made: a long sequence costs memory
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list) and isinstance(times, int) and len(sequence) * times > MOST:
                raise Fault("OverflowError: too large")
    if op is ast.Mod and isinstance(left, str):
        raise Fault("TypeError: a string cannot be divided")  # formatting is not in the grammar
    return OPERATORS[op](left, right)


def _bounded(value: Any) -> Any:
    large = abs(value) > LARGEST if isinstance(value, int) else len(value) > MOST
    if large:
        raise Fault("OverflowError: too large")
    return value
