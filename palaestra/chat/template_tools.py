"""Tools in chat templates: whether a template can declare them, and what stands in for a template that cannot.

A template that lacks tools gets the text by which the models of Hermes and Qwen2.5 were taught, as a part of the
instruction, and results as messages of the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.data import ToolCall
from palaestra.tools.calls import dumps

Messages = Sequence[Mapping[str, Any]]
Write = Callable[[Messages, Sequence[Mapping[str, Any]]], str]  # a dialogue with tools, as the template's text

HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
CALLED, KEY, VALUE, RESULT = "zqcalledzq", "zqkeyzq", "zqvaluezq", "zqresultzq"  # they occur in no template
TOOL = {
    "type": "function",
    "function": {
        "name": "zqtoolzq",
        "description": "x",
        "parameters": {
            "type": "object",
            "properties": {"zqpartzq": {"type": "string", "description": "x"}},
            "required": ["zqpartzq"],
        },
    },
}
NUMBER = re.compile(r"[A-Za-z0-9]{9}")  # the ids of calls that Mistral's templates take


class Support(NamedTuple):
    """What a chat template writes of tools.

    Attributes:
        declares: the list `tools`, and results as messages of the role `tool`.
        calls: the `tool_calls` of a reply. as_text: it takes arguments as a JSON text only, not as an object.
        alone: a result after a reply without calls, such as the error of a call that could not be read.
    """

    declares: bool = False
    calls: bool = False
    as_text: bool = False
    alone: bool = False


def support_of(write: Write) -> Support:
    """Try what a template writes of tools."""
    asked = {"role": "user", "content": "x"}
    found = Support()
    for as_text in (False, True):
        call = message_of("", [ToolCall(name=CALLED, arguments={KEY: VALUE}, id="zqcall001")], as_text=as_text)
        written = _tried(write, [asked, call, result_of(RESULT, CALLED, "zqcall001")])
        declares = all(word in written for word in ("zqtoolzq", "zqpartzq", RESULT))
        calls = declares and all(word in written for word in (CALLED, KEY, VALUE))
        found = max(found, Support(declares, calls, calls and as_text))
        if calls:
            break
    alone = _tried(write, [asked, {"role": "assistant", "content": "x"}, result_of(RESULT)])
    return found._replace(alone=not found.declares or RESULT in alone)


def _tried(write: Write, messages: Messages) -> str:
    try:
        return write(messages, [TOOL])
    except Exception:  # a template may refuse a message by any exception
        return ""


def message_of(said: str, calls: Iterable[ToolCall], *, as_text: bool = False) -> dict[str, Any]:
    """The message of a reply with calls, as templates read it."""
    written = []
    for call in calls:
        arguments = dict(call.arguments)
        given = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
        written.append({"type": "function", "id": call.id, "function": {"name": call.name, "arguments": given}})
    return {"role": "assistant", "content": said, "tool_calls": written}


def result_of(text: str, name: str = "", number: str = "") -> dict[str, Any]:
    """The message of a tool's result."""
    return {"role": "tool", "name": name, "tool_call_id": number, "content": text}


def numbered(calls: Iterable[ToolCall], before: int) -> list[ToolCall]:
    """The calls, each with an id: its own if templates take it, else one by its number in the conversation."""
    return [
        ToolCall(name=call.name, arguments=call.arguments, id=call.id if NUMBER.fullmatch(call.id) else f"call{n:05d}")
        for n, call in enumerate(calls, start=before)
    ]


def in_words(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declaration of tools for a template that has none."""
    return HEAD.replace("{tools}", "\n".join(dumps(tool) for tool in tools))


def call_in_words(call: ToolCall) -> str:
    """A call in the form that `in_words` asks for."""
    return f"<tool_call>\n{dumps({'name': call.name, 'arguments': dict(call.arguments)})}\n</tool_call>"


def without_results(messages: Messages) -> list[dict[str, Any]]:
    """The messages with results of tools as messages of the user; results that follow each other share one."""
    made: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result:
            made.append(dict(message))
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if after_result:
                made[-1]["content"] += f"\n{text}"
            else:
                made.append({"role": "user", "content": text})
        after_result = is_result
    return made
