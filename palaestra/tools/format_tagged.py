"""Calls in tags: `<find>{"id": 3}</find>`, or `<tool_call>{"name": "find", "arguments": {"id": 3}}</tool_call>`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.data import ToolCall
from palaestra.tools.calls import Parsed, Unreadable, call_of, dumps, loads, near, outside_thoughts, without
from palaestra.tools.schema import kinds
from palaestra.tools.tool import Tool

ANY = "tool_call"
SPACE = re.compile(r"\s*")
HOW = 'Write: <TOOL>{"NAME": VALUE}</TOOL>.'


class TaggedCalls:
    """The name of the tool is a tag around its arguments. A single argument that is a text may be written bare."""

    name = "tagged"

    def explain(self, tools: Sequence[Tool]) -> str:
        """How to write a call, an example, and the tools."""
        example = self.write(tools[0].sample()) if tools else HOW
        listed = "\n".join(one.manual() for one in tools)
        return f"Call a tool in its own tag, several tools one after the other, such as:\n{example}\nTools:\n{listed}"

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """All calls in a text. A tag that names no tool is ordinary text."""
        opening = re.compile("<(" + "|".join(map(re.escape, (ANY, *tools))) + ")>")
        calls: list[ToolCall] = []
        spans: list[tuple[int, int]] = []
        for start, stop in outside_thoughts(text):
            while opened := opening.search(text, start, stop):
                try:
                    call, start = _read(text, opened, tools, opening)
                except Unreadable as error:
                    return Parsed(said=text.strip(), fault=f"{error}. {HOW}")
                calls.append(call)
                spans.append((opened.start(), start))
        return Parsed(tuple(calls), without(text, spans))

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """The call on one line."""
        if call.id or call.name == ANY:
            written = {"name": call.name, "arguments": dict(call.arguments)}
            return f"<{ANY}>{dumps(written | ({'id': call.id} if call.id else {}))}</{ANY}>"
        return f"<{call.name}>{dumps(dict(call.arguments))}</{call.name}>"


def _read(
    text: str, opened: re.Match[str], tools: Mapping[str, Tool], opening: re.Pattern[str]
) -> tuple[ToolCall, int]:
    """The call after an opening tag, and the position where its closing tag ends."""
    name, begin = opened[1], _skip(text, opened.end())
    closing = f"</{name}>"
    if text.startswith("{", begin):
        value, end = loads(text, begin)
        end = _skip(text, end)
        if not text.startswith(closing, end):
            raise Unreadable(f"{closing} must follow the arguments of <{name}>, found {near(text, end)}")
        call = call_of(value) if name == ANY else ToolCall(name=name, arguments=value)
        return call, end + len(closing)
    end = text.find(closing, begin)
    if end < 0:
        raise Unreadable(f"<{name}> is never closed: end it with {closing}")
    inside = opening.search(text, begin, end)
    if inside:
        raise Unreadable(f"<{inside[1]}> is inside <{name}>: write {closing} first")
    if name == ANY:
        raise Unreadable(f'<{ANY}> must contain a JSON object: {{"name": "TOOL", "arguments": {{}}}}')
    return ToolCall(name=name, arguments=_bare(tools[name], text[begin:end].strip())), end + len(closing)


def _bare(tool: Tool, body: str) -> dict[str, Any]:
    """The arguments in a body that is not a JSON object: none, or the single argument that is a text."""
    known = tool.parameters.get("properties", {})
    if not body:
        return {}
    names = [name for name in known if name in tool.parameters.get("required", ())] or list(known)
    if len(names) == 1 and "string" in (kinds(known[names[0]], tool.parameters) or ("string",)):
        return {names[0]: body}
    raise Unreadable(f'the arguments of <{tool.name}> must be a JSON object, such as {{"NAME": VALUE}}')


def _skip(text: str, start: int) -> int:
    found = SPACE.match(text, start)
    return found.end() if found else start
