"""Read the calls of tools in a model's reply, in the form that its chat template taught it.

These forms are known: Hermes and Qwen (`<tool_call>{"name", "arguments"}</tool_call>`), Llama (`{"name",
"parameters"}`, `<|python_tag|>`), Mistral (`[TOOL_CALLS]`), gpt-oss (`to=functions.NAME … <|message|>{…}`), Qwen3-Coder
and Nemotron (`<function=NAME><parameter=KEY>`), GLM (`<arg_key>`, `<arg_value>`), DeepSeek (`<｜tool▁sep｜>`), LFM2
(`<|tool_call_start|>[NAME(KEY=VALUE)]`), Gemma 4 (`<|tool_call>call:NAME{…}`), MiniMax and Muse (`<invoke name=…>`).
Reading never raises.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.chat.thoughts import THOUGHT
from palaestra.data import ToolCall
from palaestra.tools.calls import Parsed, Unreadable, call_of, loads, without, without_last
from palaestra.tools.format_code import QUIET, read_call
from palaestra.tools.schema import kinds

BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)
GLM = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
HARMONY = re.compile(r"to=functions\.([\w.-]+)(?:(?!<\|(?:end|start|message)\|>).)*<\|message\|>", re.DOTALL)
DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>(\S+)\s*```json(.*?)```\s*|(\S+?)<｜tool▁sep｜>(.*?))"
    r"<｜tool▁call▁end｜>",
    re.DOTALL,
)
LISTED = re.compile(r"<\|tool_call_start\|>(.*?)<\|tool_call_end\|>", re.DOTALL)
GEMMA = re.compile(r"<\|tool_call>call:([\w.-]+)(\{.*?\})<tool_call\|>", re.DOTALL)
GEMMA_TEXT = re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL)
GEMMA_KEY = re.compile(r"(?<=[{,])\s*([A-Za-z_][\w-]*)\s*:")
INVOKE = re.compile(r"""<(?:\w+:)?invoke name=["']([^"']+)["']>(.*?)</(?:\w+:)?invoke>""", re.DOTALL)
INVOKED = re.compile(r"""<(?:\w+:)?parameter name=["']([^"']+)["'][^>]*>\n?(.*?)\n?</(?:\w+:)?parameter>""", re.DOTALL)
MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)?(?:\[ARGS\]|\[CALL_ID\][^\[]*\[ARGS\])?")
OBJECT = re.compile(
    r"""(?:<\|python_tag\|>\s*)?(?:\[\s*)?(\{\s*"(?:name|arguments|parameters|type|function|id)"\s*:)"""
)
ARGUMENTS = ("arguments", "parameters", "function")
MOST = 256  # calls of a reply, and arguments of a call: patterns may read from each opening to the end
Tools = Mapping[str, Mapping[str, Any]]  # name → JSON schema of the arguments


def calls_of(reply: str, tools: Sequence[Mapping[str, Any]] = ()) -> Parsed:
    """The calls of a reply. If any of them is unreadable, there are none, and `fault` says why.

    Args:
        tools: the declared tools. Forms without quotes write the text "7" and the number 7 in the same way, and the
            schema of the argument decides which it is.
    """
    schemas = schemas_of(tools)
    calls: list[ToolCall] = []
    spans: list[tuple[int, int]] = []
    try:
        for start, stop in _outside(reply):
            found = _in_stretch(reply, start, stop, schemas)
            calls += [call for some, _ in found for call in some]
            spans += [span for _, span in found]
    except Unreadable as error:
        return Parsed(said=reply.strip(), fault=str(error))
    return Parsed(tuple(calls), _around(reply, spans))


def _around(reply: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text around the calls. Before the first call it keeps its empty lines, as templates write them again."""
    if not spans:
        return reply.strip()
    first = spans[0][0]
    after = without(reply[first:], [(start - first, end - first) for start, end in spans])
    return "\n".join(filter(None, (without_last(reply[:first]), after))).strip()


def templated_calls(tokenizer: Any, reply: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    """The calls of a reply, as the tokenizer's own `response_template` reads them."""
    if "</think>" in reply and "<think>" not in reply.partition("</think>")[0]:
        reply = f"<think>{reply}"  # the prompt has opened the thought
    try:
        message = tokenizer.parse_response(reply, prefix="", tools=[dict(tool) for tool in tools])
        calls = [call_of(_flat(call)) for call in message.get("tool_calls") or ()]
    except Exception as error:  # the template and its regular expressions may raise anything
        fault = (str(error) or type(error).__name__).splitlines()[0][:200]
        return Parsed(said=reply.strip(), fault=fault)
    return Parsed(tuple(calls), str(message.get("content") or ""))


def _flat(call: Any) -> Any:
    """A call of `parse_response` as `call_of` reads it."""
    inside = call.get("function", call) if isinstance(call, Mapping) else call
    return {key: inside[key] for key in ("name", "arguments") if key in inside}


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """The schemas of declared tools by name."""
    return {one["function"]["name"]: one["function"].get("parameters", {}) for one in tools}


def _outside(reply: str) -> list[tuple[int, int]]:
    """The stretches outside thoughts. A template may have opened the first thought in the prompt."""
    end, begin = reply.find("</think>"), reply.find("<think>")
    start = end + len("</think>") if end >= 0 and not 0 <= begin < end else 0
    hidden = [found.span() for found in THOUGHT.finditer(reply, start)]
    return list(zip([start, *(end for _, end in hidden)], [*(begin for begin, _ in hidden), len(reply)], strict=True))


def _in_stretch(text: str, start: int, stop: int, tools: Tools) -> list[tuple[list[ToolCall], tuple[int, int]]]:
    """The calls between two places, with the spans that they take. The first form that occurs is the reply's form.

    Raises: Unreadable.
    """
    for opening, pattern, read in FORMS:
        _count(text, opening, start, stop)
        found = list(pattern.finditer(text, start, stop))
        if text.count(opening, start, stop) > len(found):
            raise Unreadable(f"the call that begins with {opening} is not complete")
        if found:
            return [(read(one, tools), one.span()) for one in found]
    _count(text, "to=functions.", start, stop)
    harmony = list(HARMONY.finditer(text, start, stop))
    if harmony:
        return [
            ([ToolCall(name=one[1], arguments=_arguments(loads(text, one.end())[0]))], one.span()) for one in harmony
        ]
    found_at: list[tuple[list[ToolCall], tuple[int, int]]] = []
    while (mark := MISTRAL.search(text, start, stop)) is not None:
        begin = _skip(text, mark.end())
        value, start = loads(text, begin)
        calls = [ToolCall(name=mark[1], arguments=_arguments(value))] if mark[1] else _listed(value)
        found_at.append((calls, (mark.start(), start)))
    while (opened := OBJECT.search(text, start, stop)) is not None:
        value, start = loads(text, opened.start(1))
        if not tools or _is_meant(value, tools):
            found_at.append(([_call(value)], (opened.start(), start)))
    return found_at


def _count(text: str, opening: str, start: int, stop: int) -> None:
    """Raises: Unreadable, if the text has too many of these openings."""
    if text.count(opening, start, stop) > MOST:
        raise Unreadable(f"{opening} stands there more than {MOST} times")


# ---- forms with an opening and an end ---------------------------------------------------------------------
def _block(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    """The calls inside `<tool_call>`: JSON, Qwen3-Coder's tags, or GLM's pairs."""
    body = found[1]
    _count(body, "<function=", 0, len(body))
    functions = list(FUNCTION.finditer(body))
    if body.count("<function=") > len(functions):
        raise Unreadable("the call that begins with <function= is not complete")
    if functions:
        return [call for one in functions for call in _function(one, tools)]
    name = body.partition("<arg_key>")[0].strip()
    if "<arg_key>" in body or name in tools:
        pairs = _pairs(GLM, "<arg_key>", body)
        return [_of_pairs(name, [(key.strip(), text.strip()) for key, text in pairs], tools)]
    begin = _skip(body, 0)
    value, end = loads(body, begin)
    if body[end:].strip():
        raise Unreadable("text follows the call inside <tool_call>")
    return _listed(value)


def _function(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    return [_of_pairs(found[1], _pairs(PARAMETER, "<parameter=", found[2]), tools)]


def _invoke(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    return [_of_pairs(found[1], _pairs(INVOKED, "parameter name=", found[2]), tools)]


def _pairs(pattern: re.Pattern[str], opening: str, body: str) -> list[tuple[str, str]]:
    """The arguments of a call in tags. Raises: Unreadable, for one that is not closed."""
    _count(body, opening, 0, len(body))
    found = [(pair[1], pair[2]) for pair in pattern.finditer(body)]
    if body.count(opening) > len(found):
        raise Unreadable(f"the argument that begins with {opening} is not complete")
    return found


def _of_pairs(name: str, pairs: Any, tools: Tools) -> ToolCall:
    """A call whose arguments are texts without quotes."""
    schema = tools.get(name, {})
    known = schema.get("properties", {})
    return ToolCall(name=name, arguments={key: _value(text, known.get(key), schema) for key, text in pairs})


def _value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """The JSON value that a text is, unless its argument is a text; else the text itself."""
    if schema is not None and kinds(schema, root) == {"string"}:
        return text
    try:
        value, end = loads(text)
    except Unreadable:
        return text
    return text if text[end:].strip() else value


def _deepseek(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    name, body = (found[1], found[2]) if found[1] else (found[3], found[4])
    value, end = loads(body, _skip(body, 0))
    if body[end:].strip():
        raise Unreadable("text follows the arguments of the call")
    return [ToolCall(name=name, arguments=_arguments(value))]


def _python_list(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    """The calls of `[NAME(KEY=VALUE), …]`, as Python writes them."""
    body = found[1].strip()
    for source in (body, body.replace("\n", "\\n")):  # templates write the lines of a text as they are
        listed = _python(source)
        if listed is not None:
            each = listed.elts if isinstance(listed, ast.List) else [listed]
            if len(each) > MOST:
                raise Unreadable(f"these are more than {MOST} calls")
            return [read_call(ast.get_source_segment(source, one) or "", {}) for one in each]
    raise Unreadable("this is no list of calls such as [find(id=3)]")


def _python(body: str) -> ast.expr | None:
    try:
        with QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of unknown escapes in texts
            return ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _gemma(found: re.Match[str], tools: Tools) -> list[ToolCall]:
    """Arguments with bare keys, and texts between `<|"|>`."""
    texts: list[str] = []

    def kept(one: re.Match[str]) -> str:
        texts.append(json.dumps(one[1]))
        return f"\x01{len(texts) - 1}\x01"

    bare = GEMMA_TEXT.sub(kept, found[2])
    quoted = GEMMA_KEY.sub(lambda one: f'"{one[1]}":', bare)
    restored = re.sub(r"\x01(\d+)\x01", lambda one: texts[int(one[1])] if int(one[1]) < len(texts) else "", quoted)
    return [ToolCall(name=found[1], arguments=_arguments(loads(restored)[0]))]


Form = tuple[str, re.Pattern[str], Callable[[re.Match[str], Tools], list[ToolCall]]]
FORMS: tuple[Form, ...] = (
    ("<tool_call>", BLOCK, _block),
    ("<function=", FUNCTION, _function),
    ("<｜tool▁call▁begin｜>", DEEPSEEK, _deepseek),
    ("<|tool_call_start|>", LISTED, _python_list),
    ("<|tool_call>", GEMMA, _gemma),
    ("invoke name=", INVOKE, _invoke),
)


# ---- forms in JSON ----------------------------------------------------------------------------------------
def _is_meant(value: Mapping[str, Any], tools: Tools) -> bool:
    """Whether an object without a mark around it is a call, and not an answer in JSON such as `{"id": 3}`."""
    name = value.get("name")
    return not value.keys().isdisjoint(ARGUMENTS) or (isinstance(name, str) and name in tools)


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
        text = value.strip()
        value, end = loads(text)
        if text[end:]:
            raise Unreadable("text follows the arguments of the call")
    if not isinstance(value, dict):
        raise Unreadable("`arguments` must be an object")
    return value


def _skip(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
