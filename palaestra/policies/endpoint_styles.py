"""Requests and replies of chat models in two protocols: OpenAI's chat completions, and Anthropic's messages.

A conversation is a list of messages as OpenAI writes them. `Reply` is what both protocols say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.data.protocols import Sampling
from palaestra.endpoints import Style

Messages = Sequence[Mapping[str, Any]]
PNG = "data:image/png;base64,"


class Call(NamedTuple):
    """A call of a tool. `arguments`: JSON text, as the model wrote it; it may be broken."""

    id: str
    name: str
    arguments: str


class Reply(NamedTuple):
    """What a model has said. `cut`: it was ended by the limit of tokens. `tokens`: that it has generated."""

    text: str
    calls: tuple[Call, ...]
    cut: bool
    tokens: int

    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        return {**said, "tool_calls": [call_message(call) for call in self.calls]} if self.calls else said


def call_message(call: Call) -> dict[str, Any]:
    """A call as OpenAI writes it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def ask(
    client: Any,
    style: Style,
    *,
    model: str,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
) -> Reply:
    """Ask a client for one reply."""
    asked = _ask_openai if style == "openai" else _ask_anthropic
    return asked(client, model, messages, tools, sampling, seed)


# ---- OpenAI -----------------------------------------------------------------------------------------------
def _ask_openai(
    client: Any,
    model: str,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
) -> Reply:
    done = client.chat.completions.create(
        model=model,
        messages=list(messages),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=seed % 2**31,
        **({"tools": [dict(tool) for tool in tools]} if tools else {}),
    )
    tokens = done.usage.completion_tokens if done.usage else 0
    if not done.choices:
        return Reply("", (), False, tokens)
    choice = done.choices[0]
    calls = [one for one in choice.message.tool_calls or () if one.type == "function"]
    return Reply(
        text=choice.message.content or "",
        calls=tuple(Call(one.id, one.function.name, one.function.arguments or "{}") for one in calls),
        cut=choice.finish_reason == "length",
        tokens=tokens,
    )


# ---- Anthropic --------------------------------------------------------------------------------------------
def _ask_anthropic(
    client: Any,
    model: str,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]],
    sampling: Sampling,
    seed: int,
) -> Reply:
    """The protocol has no seed. A setting that is at its default is not sent, since some models refuse it."""
    system = "\n\n".join(_words(one["content"]) for one in messages if one["role"] in ("system", "developer"))
    said = [one for one in messages if one["role"] not in ("system", "developer")]
    own = {"temperature": sampling.temperature} if sampling.temperature != 1 else {}
    own |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
    done = client.messages.create(
        model=model,
        messages=_turns(said),
        max_tokens=sampling.max_tokens,
        extra_body=own,
        **({"system": system} if system else {}),
        **({"tools": [_tool(tool) for tool in tools]} if tools else {}),
    )
    calls = [block for block in done.content if block.type == "tool_use"]
    return Reply(
        text="".join(block.text for block in done.content if block.type == "text"),
        calls=tuple(Call(block.id, block.name, json.dumps(block.input, ensure_ascii=False)) for block in calls),
        cut=done.stop_reason == "max_tokens",
        tokens=done.usage.output_tokens if done.usage else 0,
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    given = tool["function"]
    schema = given.get("parameters") or {"type": "object", "properties": {}}
    return {"name": given["name"], "description": given.get("description") or "", "input_schema": schema}


def _turns(messages: Messages) -> list[dict[str, Any]]:
    """The messages as turns of the user and the assistant, which alternate."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if turns and turns[0]["role"] == "assistant":  # the protocol begins with the user
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": "Begin."}]})
    return turns


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        number, text = message["tool_call_id"], _words(message["content"])
        return [{"type": "tool_result", "tool_use_id": number, "content": text}]
    content = message["content"] or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = [
        _block(part) for part in parts if part["type"] != "text" or part["text"].strip()
    ]  # empty ones are refused
    for call in message.get("tool_calls") or ():
        given = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": given["name"], "input": _object(given["arguments"])}
        )
    return blocks


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    data = part["image_url"]["url"].removeprefix(PNG)
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part["type"] == "text")


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; broken ones under one name, so that the model sees what it wrote."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
