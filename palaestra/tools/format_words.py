"""Calls in words: `find 3`, with the arguments in the order of the tool's schema. They are short, for small models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data import ToolCall
from palaestra.tools.calls import THINK, Parsed, Unreadable, dumps, loads, outside_thoughts, without
from palaestra.tools.schema import fits, kinds, readable, resolved
from palaestra.tools.tool import Tool

LINE = re.compile(r"[^\n]+")
PLAIN = re.compile(r"[^\s\"\[{]\S*")
NUMBER = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
KEYED = re.compile(r"([^\s=\"\[{]+)=")
QUOTED = ('"', "[", "{")  # a value in JSON begins with one of these
LITERALS = {"true": True, "false": False, "null": None}


class WordCalls:
    """The name of a tool and its arguments, one call on a line. Other lines are ordinary text.

    An argument is one word, or `"several words"` in quotes; lists and objects are written as JSON. `name=value` gives
    an argument out of order. If the last required argument is a text, it is the rest of the line.
    """

    name = "words"

    def explain(self, tools: Sequence[Tool]) -> str:
        """One line for each tool."""
        return "\n".join(["One call on a line:", *(_manual(one) for one in tools)])

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """All calls in a text: lines that begin with the name of a tool, in upper or lower case."""
        small = {name.lower(): tool for name, tool in tools.items()}
        calls: list[ToolCall] = []
        spans: list[tuple[int, int]] = []
        for start, stop in outside_thoughts(text):
            for line in LINE.finditer(text, start, stop):
                first, rest = _split(line[0].strip())
                tool = tools.get(first) or small.get(first.lower())
                if tool is None:
                    continue
                try:
                    calls.append(ToolCall(name=tool.name, arguments=_read(tool, rest)))
                except Unreadable as error:
                    return Parsed(said=text.strip(), fault=f"{error}. Write: {self.explain([tool]).splitlines()[1]}")
                spans.append(line.span())
        return Parsed(tuple(calls), without(text, spans))

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """The call on one line.

        Args:
            tools: with them, the call may lack arguments or have them in any order. Without them, it must have all
                arguments in the order of the schema.
        """
        tool = (tools or {}).get(call.name)
        if tool is None:
            return " ".join((call.name, *(_word(value, {}, {}) for value in call.arguments.values())))
        places, words, gap = _places(tool), [call.name], False
        properties = tool.parameters.get("properties", {})
        order = [*places, *(name for name in _known(tool) if name not in places)]
        for name in [*order, *(name for name in call.arguments if name not in order)]:
            if name not in call.arguments:
                gap = True
                continue
            value = call.arguments[name]
            if name == _rest_of(tool) and isinstance(value, str) and _is_rest(tool, value):
                words.append(value)
                continue
            word = _word(value, properties.get(name, {}), tool.parameters)
            words.append(f"{name}={word}" if gap or name not in places else word)
        return " ".join(words)


def _manual(tool: Tool) -> str:
    places, required = _places(tool), tool.parameters.get("required", ())
    order = [*places, *(name for name in _known(tool) if name not in places)]
    words = [name.upper() if name in required else f"[{name}=…]" for name in order]
    line = " ".join((tool.name, *words))
    return f"{line}: {tool.description}" if tool.description else line


def _known(tool: Tool) -> list[str]:
    return list(tool.parameters.get("properties", {}))


def _places(tool: Tool) -> list[str]:
    """The arguments that need no name: required ones first, and none after one that takes the rest of the line."""
    required = [name for name in _known(tool) if name in tool.parameters.get("required", ())]
    return required if _rest_of(tool) else [*required, *(name for name in _known(tool) if name not in required)]


def _rest_of(tool: Tool) -> str | None:
    """The argument that takes the rest of the line: the last required one, if it is a free text."""
    required = [name for name in _known(tool) if name in tool.parameters.get("required", ())]
    schema = resolved(tool.parameters["properties"][required[-1]], tool.parameters) if required else {}
    free = kinds(schema, tool.parameters) == {"string"} and not ({"enum", "const"} & set(schema))
    return required[-1] if free else None


def _is_rest(tool: Tool, value: str) -> bool:
    """Whether a text can be written without quotes at the end of a line."""
    words = value.split(" ")
    plain = value.isprintable() and all(words) and not value.startswith('"') and THINK not in value
    keyed = any((key := KEYED.match(word)) and key[1] in _known(tool) for word in words)
    return plain and not keyed and value == " ".join(value.split())


def _read(tool: Tool, rest: str) -> dict[str, Any]:
    """The arguments in the words after the name of a tool. Raises: Unreadable."""
    places, whole, arguments = _places(tool), _rest_of(tool), {}
    while rest:
        key = KEYED.match(rest)
        key = key if key and key[1] in _known(tool) else None
        if key:
            name, rest = key[1], rest[key.end() :]
        else:
            free = [name for name in places if name not in arguments]
            if not free:
                raise Unreadable(f"`{tool.name}` takes no further word: {rest[:40]!r}")
            name = free[0]
        if name in arguments:
            raise Unreadable(f"`{name}` stands twice")
        if name == whole and key is None and not _quoted(tool, rest):
            value, rest = _whole(tool, rest)
        else:
            value, rest = _next(name, rest, tool)
        arguments[name] = value
    return arguments


def _split(text: str) -> tuple[str, str]:
    """The first word of a text, and the text after it."""
    first, *rest = text.split(maxsplit=1) or [""]
    return first, rest[0] if rest else ""


def _quoted(tool: Tool, rest: str) -> bool:
    """Whether the rest of a line is one text in quotes, with nothing but named arguments after it."""
    if not rest.startswith('"'):
        return False
    try:
        _, end = loads(rest)
    except Unreadable:
        return False
    key = KEYED.match(rest[end:].strip())
    return not rest[end:].strip() or (rest[end].isspace() and key is not None and key[1] in _known(tool))


def _whole(tool: Tool, rest: str) -> tuple[str, str]:
    """The rest of a line as one text, and the named arguments after it."""
    words = rest.split(" ")
    end = len(words)
    while end > 1 and (key := KEYED.match(words[end - 1])) and key[1] in _known(tool):
        end -= 1
    return " ".join(words[:end]).strip(), " ".join(words[end:])


def _next(name: str, rest: str, tool: Tool) -> tuple[Any, str]:
    """The first value of a line, and the text after it."""
    schema = tool.parameters.get("properties", {}).get(name, {})
    if rest.startswith(QUOTED):
        value, end = loads(rest)
        if rest[end : end + 1].strip():
            raise Unreadable(f"after the value of `{name}` stands {rest[end : end + 20]!r}")
        return value, rest[end:].strip()
    word, rest = ("", rest) if rest[:1].isspace() else _split(rest)  # `name=` without a value
    return _value(name, word, schema, tool.parameters), rest.strip()


def _value(name: str, word: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The value of a bare word for an argument of this schema. Raises: Unreadable."""
    candidates: list[Any] = [word]
    if NUMBER.fullmatch(word):
        whole = word.lstrip("+-").isdecimal()
        number = int(word) if whole else float(word)
        candidates[:0] = [number] if math.isfinite(number) else []
    elif word in LITERALS:
        candidates.insert(0, LITERALS[word])
    for candidate in candidates:
        if fits(schema, candidate, root):
            return candidate
    raise Unreadable(f"`{name}` must be {readable(schema, root)}, found {word[:40]!r}")


def _word(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A value as one word, or as JSON if the bare word would be read as another value."""
    if not isinstance(value, str):
        return dumps(value)
    plain = PLAIN.fullmatch(value) and not KEYED.match(value) and value.isprintable()
    if not plain or THINK in value:
        return dumps(value)
    try:
        return value if _value("", value, schema, root) == value else dumps(value)
    except Unreadable:
        return dumps(value)
