"""Calls as JSON objects: `{"name": "find", "arguments": {"id": 3}}`, one or several, with text around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from palaestra.data import ToolCall
from palaestra.tools.calls import Parsed, Unreadable, call_of, dumps, loads, outside_thoughts, without
from palaestra.tools.tool import Tool

# An object is meant as a call if it opens with one of these keys, in any quotes, even if it is broken off.
OPENING = re.compile(r"""\{\s*["'“]?(?:name|arguments)["'”]?\s*:""")
HOW = 'Write: {"name": "TOOL", "arguments": {"NAME": VALUE}}.'


class JsonCalls:
    """JSON objects with `name` and `arguments`. Other JSON in the text is ordinary text."""

    name = "json"

    def explain(self, tools: Sequence[Tool]) -> str:
        """How to write a call, an example, and the tools."""
        example = self.write(tools[0].sample()) if tools else HOW
        listed = "\n".join(one.manual() for one in tools)
        return f"Call a tool with one JSON object, several tools with several, such as:\n{example}\nTools:\n{listed}"

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """All calls in a text, also of tools that do not exist."""
        calls: list[ToolCall] = []
        spans: list[tuple[int, int]] = []
        for start, stop in outside_thoughts(text):
            while opened := OPENING.search(text, start, stop):
                try:
                    value, start = loads(text, opened.start())
                    calls.append(call_of(value))
                except Unreadable as error:
                    return Parsed(said=text.strip(), fault=f"{error}. {HOW}")
                spans.append((opened.start(), start))
        return Parsed(tuple(calls), without(text, spans))

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """The call on one line."""
        written = {"name": call.name, "arguments": dict(call.arguments)}
        return dumps(written | ({"id": call.id} if call.id else {}))
