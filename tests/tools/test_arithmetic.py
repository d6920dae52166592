"""What must hold of expressions that are worked out and never run:

1. What the grammar has is worth what Python says, for every value of the variable.
2. Everything else is refused, and the error names the part.
3. Every result of an operator or a function is bounded.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

import pytest

from palaestra.tools.arithmetic import BASIC, Function, Grammar, NotInGrammar, Read


def variable(node: ast.expr, read: Read) -> Function:
    if isinstance(node, ast.Name) and node.id == "x":
        return lambda x: x
    raise NotInGrammar(node)


def constant(node: ast.Constant, text: str) -> int:
    if type(node.value) is int:
        return node.value
    raise NotInGrammar(node)


def bounded(value: Any) -> Any:
    if abs(value) > 1000:
        raise OverflowError
    return value


GRAMMAR = Grammar(
    constant=constant,
    operators=BASIC,
    signs={ast.USub: operator.neg},
    functions={"max": max, "abs": abs},
    bounded=bounded,
    further=variable,
)


@pytest.mark.parametrize("text", ["1 + 2 * x", "-(x - 7) // 3", "max(x, 4, -x) % 5", "abs(-x) + abs(x)", "x"])
def test_as_python(text: str) -> None:  # rule 1
    function = GRAMMAR.read(text)
    assert [function(x) for x in range(-9, 10)] == [
        eval(text, {"max": max, "abs": abs}, {"x": x}) for x in range(-9, 10)
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("1 + y", "y"),
        ("+x", "+x"),
        ("x / 2", "x / 2"),
        ("x ** 2", "x ** 2"),
        ("min(x, 2)", "min(x, 2)"),
        ("max()", "max()"),
        ("max(x, key=x)", "max(x, key=x)"),
        ("2 * 'a'", "'a'"),
        ("x.real", "x.real"),
        ("[x]", "[x]"),
        ("lambda: x", "lambda: x"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_the_rest_is_refused(text: str, part: str) -> None:  # rule 2
    with pytest.raises(NotInGrammar) as caught:
        GRAMMAR.read(text)
    assert str(caught.value) == part == ast.unparse(caught.value.node)


def test_no_further_nodes() -> None:  # rule 2
    bare = Grammar(constant=constant, operators=BASIC, signs={}, functions={}, bounded=bounded)
    assert bare.read("2 * (3 + 4)")(None) == 14
    with pytest.raises(NotInGrammar):
        bare.read("x")


@pytest.mark.parametrize("text", ["x * x", "max(x * 2, 1) + 999", "0 - x * 40 + x * 40"])
def test_results_are_bounded(text: str) -> None:  # rule 3
    function = GRAMMAR.read(text)
    assert function(0) is not None
    with pytest.raises(OverflowError):
        function(40)


@pytest.mark.parametrize("text", ["", "1 +", "(1", "1 2"])
def test_what_python_cannot_parse(text: str) -> None:  # rule 2
    with pytest.raises(SyntaxError):
        GRAMMAR.read(text)
