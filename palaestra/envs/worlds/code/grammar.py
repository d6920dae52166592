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
Expression = Callable[[Any], Any]


class Unreadable(Exception):
    """The text is no expression of the grammar; says why."""


class Fault(Exception):
    """The expression has no value here; says why, as Python would."""


@functools.lru_cache(maxsize=16384)
def read(text: str) -> Expression:
    """The function of `x` that an expression is. Raises: Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable("too long")
    if not WRITTEN.fullmatch(text):
        raise Unreadable("not understood")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable("not understood") from None
    return _made(tree)


def evaluate(expression: Expression, x: Any) -> Any:
    """The value where `x` is this. Raises: Fault."""
    try:
        return expression(x)
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise Fault(f"{type(fault).__name__}: {fault}") from None


def _made(node: ast.expr) -> Expression:
    """The function of a tree. Raises: Unreadable, for whatever is not in the grammar."""
    match node:
        case ast.Name(id="x"):
            return lambda x: x
        case ast.Constant(value=value) if type(value) is str or (type(value) is int and value <= LARGEST):
            return lambda x: value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second, kind = _made(left), _made(right), type(op)
            return lambda x: _bounded(_applied(kind, first(x), second(x)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _made(operand)
            return lambda x: -inner(x)
        case ast.List(elts=elements):
            made = [_made(one) for one in elements]
            return lambda x: [one(x) for one in made]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            made, function = [_made(one) for one in args], FUNCTIONS[name]
            return lambda x: _bounded(function(*[one(x) for one in made]))
        case ast.Call(func=ast.Attribute(value=inside, attr=name), args=[], keywords=[]) if name in METHODS:
            inner = _made(inside)
            return lambda x: _method(inner(x), name)
        case ast.Subscript(value=inside, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            inner = _made(inside)
            ends = [_made(part) if part is not None else _nothing for part in (lower, upper, step)]
            return lambda x: inner(x)[slice(*[end(x) for end in ends])]
        case ast.Subscript(value=inside, slice=index) if not isinstance(index, ast.Tuple):
            inner, place = _made(inside), _made(index)
            return lambda x: inner(x)[place(x)]
    raise Unreadable("not understood")


def _nothing(x: Any) -> None:
    return None


def _method(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise Fault(f"AttributeError: '{type(text).__name__}' object has no attribute '{name}'")
    found: str = getattr(text, name)()
    return found


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
