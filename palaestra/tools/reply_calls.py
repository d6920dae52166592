"""Read the calls of tools in a model's reply, in the form that its chat template taught it.

These forms are known: Hermes and Qwen (`<tool_call>{"name", "arguments"}</tool_call>`), Llama (`{"name",
"parameters"}`, `<|python_tag|>`), Mistral (`[TOOL_CALLS]`), gpt-oss (`to=functions.NAME … <|message|>{…}`), Qwen3-Coder
(`<function=NAME><parameter=KEY>`) and GLM (`<arg_key>`, `<arg_value>`). Reading never raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from palaestra.data import ToolCall
from palaestra.tools.calls import Parsed, Unreadable, call_of, loads, outside_thoughts, without

BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)
GLM = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
HARMONY = re.compile(r"to=functions\.([\w.-]+).*?<\|message\|>", re.DOTALL)
MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)?(?:\[ARGS\]|\[CALL_ID\][^\[]*\[ARGS\])?")
OBJECT = re.compile(r"""(?:<\|python_tag\|>\s*)?\[?\s*(\{\s*"(?:name|arguments|parameters|type|function|id)"\s*:)""")


def calls_of(reply: str) -> Parsed:
    """The calls of a reply. If any of them is unreadable, there are none, and `fault` says why."""
    calls: list[ToolCall] = []
    spans: list[tuple[int, int]] = []
    try:
        for start, stop in _outside(reply):
            found = _in_stretch(reply, start, stop)
            calls += [call for some, _ in found for call in some]
            spans += [span for _, span in found]
    except Unreadable as error:
        return Parsed(said=reply.strip(), fault=str(error))
    return Parsed(tuple(calls), without(reply, spans))


def _outside(reply: str) -> list[tuple[int, int]]:
    """The stretches outside thoughts. A template may have opened the first thought in the prompt."""
    end, begin = reply.find("</think>"), reply.find("<think>")
    start = end + len("</think>") if end >= 0 and not 0 <= begin < end else 0
    return [(max(a, start), b) for a, b in outside_thoughts(reply) if b > start]


def _in_stretch(text: str, start: int, stop: int) -> list[tuple[list[ToolCall], tuple[int, int]]]:
    """The calls between two places, with the spans that they take. The first form that occurs is the reply's form."""
    blocks = list(BLOCK.finditer(text, start, stop))
    if blocks:
        return [(_block(one[1]), one.span()) for one in blocks]
    functions = list(FUNCTION.finditer(text, start, stop))
    if functions:
        return [([_function(one)], one.span()) for one in functions]
    harmony = list(HARMONY.finditer(text, start, stop))
    if harmony:
        return [
            ([ToolCall(name=one[1], arguments=_arguments(loads(text, one.end())[0]))], one.span()) for one in harmony
        ]
    found: list[tuple[list[ToolCall], tuple[int, int]]] = []
    while (mark := MISTRAL.search(text, start, stop)) is not None:
        begin = _skip(text, mark.end())
        value, start = loads(text, begin)
        calls = [ToolCall(name=mark[1], arguments=_arguments(value))] if mark[1] else _listed(value)
        found.append((calls, (mark.start(), start)))
    while (opened := OBJECT.search(text, start, stop)) is not None:
        value, start = loads(text, opened.start(1))
        found.append(([_call(value)], (opened.start(), start)))
    return found


def _block(body: str) -> list[ToolCall]:
    """The calls inside `<tool_call>`: JSON, Qwen3-Coder's tags, or GLM's pairs."""
    functions = list(FUNCTION.finditer(body))
    if functions:
        return [_function(one) for one in functions]
    pairs = list(GLM.finditer(body))
    if pairs:
        arguments = {pair[1].strip(): _value(pair[2].strip()) for pair in pairs}
        return [ToolCall(name=body[: pairs[0].start()].strip(), arguments=arguments)]
    begin = _skip(body, 0)
    value, end = loads(body, begin)
    if body[end:].strip():
        raise Unreadable("text follows the call inside <tool_call>")
    return _listed(value)


def _function(found: re.Match[str]) -> ToolCall:
    return ToolCall(name=found[1], arguments={one[1]: _value(one[2]) for one in PARAMETER.finditer(found[2])})


def _value(text: str) -> Any:
    """The JSON value that a text is; else the text itself."""
    try:
        value, end = loads(text)
    except Unreadable:
        return text
    return text if text[end:].strip() else value


def _listed(value: Any) -> list[ToolCall]:
    return [_call(one) for one in value] if isinstance(value, list) else [_call(value)]


def _call(value: Any) -> ToolCall:
    """A call in the form of Hermes, Llama (`parameters`) or OpenAI (`function`)."""
    if isinstance(value, dict):
        if isinstance(value.get("function"), dict):
            value = {**value["function"], **({"id": value["id"]} if "id" in value else {})}
        value = {key: one for key, one in value.items() if key != "type"}
        if "parameters" in value and "arguments" not in value:
            value["arguments"] = value.pop("parameters")
        if "arguments" in value:
            value["arguments"] = _arguments(value["arguments"])
    return call_of(value)


def _arguments(value: Any) -> Any:
    """The arguments; some models write the object as a JSON text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            raise Unreadable("`arguments` must be an object") from None
    if not isinstance(value, dict):
        raise Unreadable("`arguments` must be an object")
    return value


def _skip(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
