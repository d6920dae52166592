"""The grammar of expressions: numbers, strings, lists, and one variable `x`.

No text is run as Python. An expression with anything else in it is refused, and a value that grows too large is a
fault.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from palaestra.tools.arithmetic import BASIC, Function, Grammar, NotInGrammar, Read

LONGEST = 120  # characters of an expression
MOST = 1000  # characters or items of a value
LARGEST = 10**18  # absolute value of a number
WRITTEN = re.compile(r"[A-Za-z0-9 +\-*/%()\[\].,:'\"]*")
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
    """A text that is no expression of the grammar. The message says why."""


class Fault(Exception):
    """An expression that has no value for an input. The message says why, in the form of a Python error."""


@functools.lru_cache(maxsize=16384)
def read(text: str) -> Function:
    """Read an expression as a function of `x`. Raises: Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable("too long")
    if not WRITTEN.fullmatch(text):
        raise Unreadable("not understood")
    try:
        return GRAMMAR.read(text.strip())
    except (NotInGrammar, SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable("not understood") from None


def evaluate(expression: Function, x: Any) -> Any:
    """The value of an expression for an input `x`. Raises: Fault."""
    try:
        return expression(x)
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise Fault(f"{type(fault).__name__}: {fault}") from None


def _constant(node: ast.Constant, text: str) -> Any:
    value = node.value
    if type(value) is str or (type(value) is int and value <= LARGEST):
        return value
    raise NotInGrammar(node)


def _further(node: ast.expr, read: Read) -> Function:
    """Read the variable, a list, a method, an index or a slice. Raises: NotInGrammar."""
    match node:
        case ast.Name(id="x"):
            return lambda x: x
        case ast.List(elts=elements):
            made = [read(one) for one in elements]
            return lambda x: [one(x) for one in made]
        case ast.Call(func=ast.Attribute(value=inside, attr=name), args=[], keywords=[]) if name in METHODS:
            inner = read(inside)
            return lambda x: _method(inner(x), name)
        case ast.Subscript(value=inside, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            inner = read(inside)
            ends = [read(part) if part is not None else _nothing for part in (lower, upper, step)]
            return lambda x: inner(x)[slice(*[end(x) for end in ends])]
        case ast.Subscript(value=inside, slice=index) if not isinstance(index, ast.Tuple):
            inner, place = read(inside), read(index)
            return lambda x: inner(x)[place(x)]
    raise NotInGrammar(node)


def _nothing(x: Any) -> None:
    return None


def _method(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise Fault(f"AttributeError: '{type(text).__name__}' object has no attribute '{name}'")
    found: str = getattr(text, name)()
    return found


def _times(left: Any, right: Any) -> Any:
    for sequence, times in ((left, right), (right, left)):  # first, since a long sequence costs memory
        if isinstance(sequence, str | list) and isinstance(times, int) and len(sequence) * times > MOST:
            raise Fault("OverflowError: too large")
    return left * right


def _rest(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        raise Fault("TypeError: a string cannot be divided")  # in Python, `%` would format it
    return left % right


def _bounded(value: Any) -> Any:
    large = abs(value) > LARGEST if isinstance(value, int) else len(value) > MOST
    if large:
        raise Fault("OverflowError: too large")
    return value


GRAMMAR = Grammar(
    constant=_constant,
    operators={**BASIC, ast.Mult: _times, ast.Mod: _rest},
    signs={ast.USub: operator.neg},
    functions=FUNCTIONS,
    bounded=_bounded,
    further=_further,
)
