"""Exact arithmetic on expressions that an agent writes. They are never executed as code.

A result that would not fit into memory is refused before it is computed.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from palaestra.registry import NonNegative, register
from palaestra.tools.arithmetic import BASIC, Grammar, NotInGrammar
from palaestra.tools.tool import Tool, ToolError, tool

Number = Fraction | float  # a float is a rounded result, such as a root
LONGEST = 1000  # characters
MOST_BITS = 4000  # most bits of a number: about 1200 digits
DIGITS = 12  # digits of a rounded result
OTHER_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


def evaluate(expression: str) -> Number:
    """The value of an expression of numbers, `+ - * / // % **`, brackets, and the functions in FUNCTIONS.

    Raises: ToolError, for any other text, a division by zero, or a result that is too large.
    """
    source = expression.translate(OTHER_SIGNS).strip()
    if len(source) > LONGEST:
        raise ToolError(f"the expression has {len(source):,} characters; at most {LONGEST:,} are taken")
    if not source.isascii():
        strange = next(sign for sign in source if not sign.isascii())
        raise ToolError(f"{strange!r} is no sign of arithmetic")
    try:
        value: Number = GRAMMAR.read(source)(None)
        return value
    except NotInGrammar as refused:
        if isinstance(refused.node, ast.Tuple):
            raise ToolError("write numbers without commas") from None
        raise ToolError(f"cannot work out {_short(str(refused))}: there are numbers, operators and {KNOWN}") from None
    except SyntaxError:
        raise ToolError(f"cannot read {_short(source)}: write for example (17 + 4) * 2.5") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (RecursionError, MemoryError):
        raise ToolError("the expression is nested too deep") from None
    except (OverflowError, ValueError):
        raise ToolError("the numbers are too large or too small") from None


def written(value: Number) -> str:
    """A result as text: exact for whole numbers and finite decimals, else rounded, with the fraction if it is short."""
    if isinstance(value, float):
        return f"about {value:.{DIGITS}g}"
    if value.denominator == 1:
        return str(value.numerator)
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest == 1 and places <= 30:
        whole, part = divmod(abs(value.numerator) * 10**places // value.denominator, 10**places)
        return f"{'-' if value < 0 else ''}{whole}.{part:0{places}d}"
    near = f"about {float(value):.{DIGITS}g}"
    return f"{value} = {near}" if len(str(value)) <= 30 else near


@register("tool", "calculator")
@functools.lru_cache
def calculator(*, name: str = "calculator", cost: NonNegative = 0.0) -> Tool:
    """The calculator as a tool.

    Args:
        name: name of the tool.
        cost: cost of one call.
    """

    def calculate(expression: str) -> str:
        """Work out an expression exactly, such as (17 + 4) * 2.5.

        Args:
            expression: numbers, + - * / // % **, brackets, abs, min, max, round, floor, ceil, sqrt, gcd, lcm.
        """
        return written(evaluate(expression))

    return tool(calculate, name=name, timeout_s=5.0, cost=cost)


# ---- evaluation -------------------------------------------------------------------------------------------
def _constant(node: ast.Constant, source: str) -> Number:
    match node.value:
        case bool():
            raise ToolError("true and false are no numbers")
        case int() as number:
            return _bounded(Fraction(number))
        case float():
            return _bounded(_decimal(source[node.col_offset : node.end_col_offset]))
    raise NotInGrammar(node)


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which tells who calls it with other numbers than it takes."""

    def checked(*values: Number) -> Any:
        try:
            return function(*values)
        except TypeError:
            raise ToolError(f"{name} does not take {len(values)} of these numbers") from None

    return checked


def _decimal(text: str) -> Fraction:
    digits, _, exponent = text.lower().replace("_", "").partition("e")
    if exponent and abs(int(exponent)) > MOST_BITS // 4:
        raise ToolError(f"{_short(text)} is too large or too small")
    return Fraction(digits + (f"e{exponent}" if exponent else ""))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) not in (0, 1) and bits * abs(exponent) > MOST_BITS + bits:
            raise ToolError("the result of this power would be too large")
        return _bounded(base**exponent.numerator)
    if float(base) < 0:
        raise ToolError("a negative number has no real power with a broken exponent")
    if exponent == Fraction(1, 2):
        return _root(base)
    return _bounded(float(base) ** float(exponent))


def _bounded(value: Any) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolError("the result is too large")
        return value
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ToolError(f"the result has more than {MOST_BITS * 3 // 10:,} digits")
    return value


def _root(value: Number) -> Number:
    if value < 0:
        raise ToolError("a negative number has no real root")
    if isinstance(value, Fraction):
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return math.sqrt(value)


def _whole(function: Callable[..., int]) -> Callable[..., Number]:
    def on_whole(*values: Number) -> Number:
        if any(isinstance(value, float) or value.denominator != 1 for value in values):
            raise ToolError("this takes whole numbers only")
        return Fraction(function(*(int(value) for value in values)))

    return on_whole


def _rounded(value: Number, places: Number = Fraction(0)) -> Number:
    if not -100 <= places <= 100 or places != int(places):
        raise ToolError("round takes a whole number of places, at most 100")
    scale = Fraction(10) ** int(places)
    scaled = abs(Fraction(value)) * scale + Fraction(1, 2)  # halves are rounded away from zero
    return math.floor(scaled) / scale * (1 if value >= 0 else -1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": _root,
    "gcd": _whole(math.gcd),
    "lcm": _whole(math.lcm),
}
KNOWN = ", ".join(FUNCTIONS)
GRAMMAR = Grammar(
    constant=_constant,
    operators={**BASIC, ast.Div: operator.truediv, ast.Pow: _power},
    signs={ast.USub: operator.neg, ast.UAdd: operator.pos},
    functions={name: _checked(name, function) for name, function in FUNCTIONS.items()},
    bounded=_bounded,
)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
