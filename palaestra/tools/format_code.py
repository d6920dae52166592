"""Calls as Python expressions: `find(id=3)`, one or several on a line. They are parsed and never executed."""

from __future__ import annotations

import ast
import keyword
import math
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data import ToolCall
from palaestra.tools.calls import DEEPEST, THINK, Parsed, Unreadable, near, outside_thoughts, without
from palaestra.tools.tool import Tool

OPENING = re.compile(r"(?:^|(?<=;)|(?<=</think>))[ \t]*([A-Za-z_][\w-]*)\(", re.MULTILINE)  # also after another call
NAMED = re.compile(r"\s*([A-Za-z_][\w-]*)(?=\()")
PIECE = re.compile(r"""['"]|[()\[\]{}]|\#[^\n]*|[^'"()\[\]{}#]+""")
CLOSED = re.compile(r"[ \t]*(?:;|\#[^\n]*|$)", re.MULTILINE)
LITERAL = {quote: re.compile(rf"(?:[^{quote}\\\n]+|\\.)*+{quote}", re.DOTALL) for quote in "'\""}
MOST_LOST = 100  # lines that begin like a call of an unknown tool but are no call; further such lines are skipped
HOW = "Write: TOOL(NAME=VALUE), with plain values only."
PYTHON = {"true": "True", "false": "False", "null": "None"}
QUIET = threading.Lock()  # the whole process shares the filters of warnings


class CodeCalls:
    """Call expressions with literal arguments. A call begins a line, or follows `;` or `</think>`."""

    name = "code"

    def explain(self, tools: Sequence[Tool]) -> str:
        """How to write a call, an example, and the tools."""
        example = self.write(tools[0].sample()) if tools else HOW
        listed = "\n".join(one.manual() for one in tools)
        return f"Call tools as Python functions, each on a line of its own, such as:\n{example}\nTools:\n{listed}"

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """All calls in a text. A line that is one complete call counts even if there is no such tool."""
        calls: list[ToolCall] = []
        spans: list[tuple[int, int]] = []
        lost = 0
        for start, stop in outside_thoughts(text):
            while opened := OPENING.search(text, start, stop):
                begin = opened.start(1)
                if opened[1] not in tools and (lost > MOST_LOST or "-" in opened[1]):
                    start = _next_line(text, opened.end())
                    continue
                try:
                    end = _end(text, opened.end() - 1)
                    calls.append(read_call(text[begin:end], tools))
                    if not (closed := CLOSED.match(text, end)):
                        raise Unreadable(f"nothing may follow the call of `{opened[1]}`, found {near(text, end)}")
                except Unreadable as error:
                    if opened[1] in tools:
                        return Parsed(said=text.strip(), fault=f"{error}. {HOW}")
                    lost += 1
                    calls = calls[: len(spans)]
                    start = _next_line(text, opened.end())
                    continue
                start = closed.end()
                spans.append((begin, start if text[start - 1] == ";" else end))
        return Parsed(tuple(calls), without(text, spans))

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """The call on one line."""
        plain = {name: value for name, value in call.arguments.items() if _is_word(name)}
        written = [f"{name}={value!r}" for name, value in plain.items()]
        strange = {name: value for name, value in call.arguments.items() if name not in plain}
        line = f"{call.name}({', '.join([*written, *([f'**{strange!r}'] if strange else [])])})"
        return line.replace(THINK, "\\x3cthink>")


def _is_word(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _next_line(text: str, start: int) -> int:
    found = text.find("\n", start)
    return len(text) if found < 0 else found


def _end(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    open_brackets: list[str] = []
    while start < len(text):
        piece = PIECE.match(text, start)
        assert piece is not None  # the alternatives match every character
        first = piece[0][0]
        if first in "'\"":
            start = _after_text(text, start)
            continue
        if first in "([{":
            open_brackets.append({"(": ")", "[": "]", "{": "}"}[first])
            if len(open_brackets) > DEEPEST:
                raise Unreadable(f"brackets are nested more than {DEEPEST} deep")
        elif first in ")]}":
            expected = open_brackets.pop()
            if first != expected:
                raise Unreadable(f"`{expected}` was expected, found `{first}`")
            if not open_brackets:
                return start + 1
        start = piece.end()
    raise Unreadable(f"the end is missing: close it with `{open_brackets[-1]}`")


def _after_text(text: str, start: int) -> int:
    quote = text[start]
    if text.startswith(quote * 3, start):
        end = text.find(quote * 3, start + 3)
        while end >= 0 and _escaped(text, end, start + 3):
            end = text.find(quote * 3, end + 1)
        end = -1 if end < 0 else end + 3
    else:
        found = LITERAL[quote].match(text, start + 1)
        end = found.end() if found else -1
    if end < 0:
        raise Unreadable(f"the text that begins with {near(text, start)} is never closed")
    return end


def _escaped(text: str, place: int, start: int) -> bool:
    backslashes = 0
    while place - backslashes > start and text[place - backslashes - 1] == "\\":
        backslashes += 1
    return backslashes % 2 == 1


def read_call(source: str, tools: Mapping[str, Tool]) -> ToolCall:
    """The call in `source`, which must be one complete call."""
    named = NAMED.match(source)  # names of tools may have hyphens, which names of Python have not
    if named is not None and "-" in named[1]:
        source = f"{named[1].replace('-', '_')}{source[named.end() :]}"
    try:
        with QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of unknown escapes in texts
            call = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise Unreadable(f"this is not a call: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError):
        raise Unreadable("this is not a call") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise Unreadable("this is more than one call")
    name = call.func.id if named is None else named[1]
    arguments: dict[str, Any] = {}
    known = list(tools[name].parameters.get("properties", {})) if name in tools else []
    if len(call.args) > len(known):
        raise Unreadable(f"`{name}` takes {len(known)} arguments" if name in tools else "give arguments by name")
    for key, node in zip(known, call.args, strict=False):
        arguments[key] = _literal(node)
    for given in call.keywords:
        value = _literal(given.value)
        further = {given.arg: value} if given.arg else value if isinstance(value, dict) else {}
        doubled = [key for key in further if key in arguments]
        if doubled or not further:
            raise Unreadable(f"`{doubled[0]}` is given twice" if doubled else "`**` needs an object of arguments")
        arguments |= further
    return ToolCall(name=name, arguments=arguments)


def _literal(node: ast.AST) -> Any:
    """The JSON value of a literal. Raises: Unreadable, for names, operators, calls and all else that JSON lacks."""
    match node:
        case ast.Constant(value=bool() | str() | None):
            return node.value
        case ast.Constant(value=int() | float() as number) if isinstance(number, int) or math.isfinite(number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            if not isinstance(number, bool) and (isinstance(number, int) or math.isfinite(number)):
                return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_literal(key) if key is not None else None for key in keys]
            if all(isinstance(key, str) for key in names) and len(set(names)) == len(names):
                return dict(zip(names, map(_literal, values), strict=True))
            raise Unreadable("the keys of an object must be different texts")
        case ast.Name(id="true" | "false" | "null" as word):
            raise Unreadable(f"write {PYTHON[word]} instead of {word}")
    raise Unreadable("an argument must be a plain value")
