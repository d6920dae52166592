"""Declare the commands of a world as tools, and read an act that is one call of them.

A role with `tools.native` shows the tools to its model by the chat template, and a call reaches the world as
`Action.tool_calls`. An act without them is read as JSON, `{"name": "open", "arguments": {"id": "d3"}}`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from palaestra.data import Action, ToolCall
from palaestra.envs.kit.images import Message, without_places
from palaestra.tools import Tool, Toolbox
from palaestra.tools.format_json import HOW
from palaestra.tools.schema import first_fault
from palaestra.tools.tool import WrongArguments


def command(
    name: str, description: str, arguments: Mapping[str, Mapping[str, Any]], *, optional: Collection[str] = ()
) -> Tool:
    """A command as a tool. The world itself carries the call out.

    Args:
        arguments: name → JSON schema, such as `{"type": "string", "description": "such as d3"}`.
        optional: the arguments that a call may leave out.
    """
    schema: dict[str, Any] = {"type": "object", "properties": {key: dict(one) for key, one in arguments.items()}}
    required = [key for key in arguments if key not in optional]
    if required:
        schema["required"] = required
    # The check forbids further arguments. The declaration does not say so, because each prompt pays for its words.
    checked = schema | {"additionalProperties": False}
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        call=_nothing,
        read=functools.partial(_read, checked),
    )


def call_in(action: Action, box: Toolbox) -> ToolCall | str:
    """The only call of an act, with arguments that fit its tool. Otherwise a text that says what is wrong with the act.

    Args:
        box: the commands, with the format "json".
    """
    calls = tuple(action.tool_calls)
    if not calls:
        parsed = box.read(action.value if isinstance(action.value, str) else "")
        if parsed.fault is not None:  # without the hint: a chat template may ask for another form than bare JSON
            return parsed.fault.removesuffix(HOW).rstrip(" .")
        calls = parsed.calls
    if len(calls) != 1:
        found = f"make one call in each turn, found {len(calls)}" if calls else "nothing was called"
        return f"{found}; the tools are: {', '.join(box.tools)}"
    result = box.call(calls[0])
    return calls[0] if result.ok else result.text.removeprefix("error: ")


def results_of(
    calls: Sequence[ToolCall], texts: Sequence[str], pictures: Sequence[Any], *, apart: bool
) -> list[Message]:
    """The messages that answer calls.

    Args:
        texts: of the results, in the order of the calls. Calls after the last result were not carried out.
        pictures: the images of all results.
        apart: give each result a message of the role `tool`, as chat templates expect for native calls. Then a message
            of the user follows with the images. False: one message of the user has all texts and images.
    """
    shown: Message = {"pictures": tuple(pictures)} if pictures else {}
    if not apart:
        return [{"role": "user", "content": "\n".join(texts)} | shown]
    results: list[Message] = [
        {"role": "tool", "name": call.name, "content": without_places(text)}
        for call, text in zip(calls, texts, strict=False)
    ]
    return [*results, {"role": "user", "content": ""} | shown] if pictures else results


def _read(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call. Raises: WrongArguments, also for a text without a word."""
    fault = first_fault(schema, given)
    blank = next((key for key, value in given.items() if isinstance(value, str) and not value.strip()), None)
    if fault is None and blank is not None:
        fault = f"`{blank}` is empty"
    if fault is not None:
        raise WrongArguments(fault)
    return dict(given)


def _nothing(**arguments: Any) -> str:
    """The toolbox runs this for a call whose arguments fit."""
    return ""
