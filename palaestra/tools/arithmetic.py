"""Expressions as Python writes them, worked out here: nothing of a text is ever run.

A `Grammar` says what may stand in an expression; whatever else stands there is refused. The calculator has one for
exact numbers, the world `code` one for numbers, texts and lists.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Function = Callable[[Any], Any]  # of the variable, where the grammar has one
Read = Callable[[ast.expr], Function]
BASIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class NotInGrammar(Exception):
    """A part of an expression that the grammar does not have; `node` is that part."""

    def __init__(self, node: ast.expr) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


def no_more(node: ast.expr, read: Read) -> Function:
    """`further` of a grammar that has nothing more. Raises: NotInGrammar."""
    raise NotInGrammar(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What may stand in an expression beside brackets, and what it is worth.

    Attributes:
        constant: the value of a constant, given its node and the text that is read. Raises NotInGrammar for others.
        operators: sign between two values → what it gives. signs: sign before a value → what it gives.
        functions: name → function of one or more values.
        bounded: called with every result of an operator or a function; raises for one that is too large.
        further: reads every other node, given what reads its parts.
    """

    constant: Callable[[ast.Constant, str], Any]
    operators: Mapping[type[ast.operator], Callable[[Any, Any], Any]]
    signs: Mapping[type[ast.unaryop], Callable[[Any], Any]]
    functions: Mapping[str, Callable[..., Any]]
    bounded: Callable[[Any], Any]
    further: Callable[[ast.expr, Read], Function] = no_more

    def read(self, text: str) -> Function:
        """The function of the variable that an expression is.

        Raises: SyntaxError, ValueError, MemoryError or RecursionError, as Python's parser does; NotInGrammar.
        """
        bounded = self.bounded

        def made(node: ast.expr) -> Function:
            match node:
                case ast.Constant():
                    value = self.constant(node, text)
                    return lambda x: value
                case ast.UnaryOp(op=sign, operand=operand) if type(sign) in self.signs:
                    inner, signed = made(operand), self.signs[type(sign)]
                    return lambda x: signed(inner(x))
                case ast.BinOp(left=left, op=between, right=right) if type(between) in self.operators:
                    first, second, worked_out = made(left), made(right), self.operators[type(between)]
                    return lambda x: bounded(worked_out(first(x), second(x)))
                case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
                    name in self.functions and arguments
                ):
                    given, function = [made(argument) for argument in arguments], self.functions[name]
                    return lambda x: bounded(function(*[one(x) for one in given]))
            return self.further(node, made)

        return made(ast.parse(text, mode="eval").body)
