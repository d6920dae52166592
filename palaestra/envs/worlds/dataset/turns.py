"""The turns of a conversation as reward functions get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.chat.messages import reply_of
from palaestra.data import Action
from palaestra.tools.formats import format_of

Given = Mapping[str, Any]


def said_by(action: Action, before: Sequence[Given]) -> Given:
    """The message of a reply, with its words and its calls of tools.

    Args:
        before: what was said since the prompt.
    """
    made = sum(len(message.get("tool_calls", ())) for message in before)
    return reply_of(action, made).as_given()


def answered(text: str, before: Sequence[Given]) -> Given:
    """The message that answers a reply: a tool's result, if the reply calls tools, else a message of the user."""
    calls = before[-1].get("tool_calls")
    if not calls:
        return {"role": "user", "content": text}
    last = calls[-1]
    return {"role": "tool", "content": text, "name": last["function"]["name"], "tool_call_id": last["id"]}


def judged_text(action: Action) -> str:
    """What verifiers judge: the text of a reply, or its calls of tools as JSON, one a line."""
    if action.tool_calls:
        return "\n".join(map(format_of("json").write, action.tool_calls))
    return str(action.value) if action.text is None else action.text
