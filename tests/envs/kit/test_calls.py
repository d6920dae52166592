"""Acts that are calls of tools:

1. The only call of an act is read, from `tool_calls` or from JSON in its text.
2. An unknown tool, a missing, unknown, empty or wrong argument, no call, several calls and broken JSON give a text that
   names the fault.
3. The declaration has the described arguments, and says which are required.
"""

from __future__ import annotations

import pytest

from palaestra.data import Action, ToolCall
from palaestra.envs.kit.calls import call_in, command
from palaestra.tools import Toolbox

OPEN = ToolCall(name="open", arguments={"id": "d3"})


def box() -> Toolbox:
    number = {"count": {"type": "integer"}}
    return Toolbox(
        [command("open", "Show it.", {"id": {"type": "string"}}), command("wait", "", number, optional=("count",))]
    )


@pytest.mark.parametrize(
    "action",
    [
        Action(text="I look.", tool_calls=[OPEN]),
        Action(text='{"name": "open", "arguments": {"id": "d3"}}'),
        Action(text='So: {"name": "open", "arguments": {"id": "d3"}}.'),
    ],
)
def test_1_one_call_is_read(action: Action) -> None:
    call = call_in(action, box())
    assert isinstance(call, ToolCall) and (call.name, dict(call.arguments)) == ("open", {"id": "d3"})


def test_1_optional_arguments() -> None:
    for arguments in ({}, {"count": 2}):
        assert isinstance(call_in(Action(tool_calls=[ToolCall(name="wait", arguments=arguments)]), box()), ToolCall)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([ToolCall(name="close", arguments={})], "there is no tool `close`; there are: open, wait"),
        ([ToolCall(name="open", arguments={})], "the argument `id` is missing"),
        ([ToolCall(name="open", arguments={"id": 3})], "`id` must be a text, found 3"),
        ([ToolCall(name="open", arguments={"id": "  "})], "`id` is empty"),
        ([ToolCall(name="open", arguments={"id": "d3", "page": 1})], "`page`"),
        ([ToolCall(name="wait", arguments={"count": True})], "`count` must be an integer"),
        ([OPEN, OPEN], "make one call in each turn, found 2; the tools are: open, wait"),
    ],
)
def test_2_faults_of_calls(calls: list[ToolCall], said: str) -> None:
    fault = call_in(Action(text="x", tool_calls=calls), box())
    assert isinstance(fault, str) and said in fault and not fault.startswith("error")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing was called"),
        ("open d3", "nothing was called"),
        ('{"name": "open", "arguments": {', "this is no JSON"),
        ('{"name": 3}', "`name` must be a text"),
        ('{"name": "open", "arguments": {"id": "d3"}} {"name": "wait"}', "found 2"),
    ],
)
def test_2_faults_of_texts(text: str, said: str) -> None:
    fault = call_in(Action(text=text), box())
    assert isinstance(fault, str) and said in fault and "Write:" not in fault and not fault.endswith(".")


def test_2_an_index_is_no_call() -> None:
    assert "nothing was called" in str(call_in(Action(value=3), box()))


def test_3_declarations() -> None:
    show, wait = (one["function"] for one in box().declarations)
    assert show == {
        "name": "open",
        "description": "Show it.",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    }
    assert "required" not in wait["parameters"] and wait["parameters"]["properties"] == {"count": {"type": "integer"}}
