"""Requests and replies of chat models in two protocols: OpenAI's chat completions, and Anthropic's messages.

A conversation is a list of messages as OpenAI writes them. `Reply` is what both protocols say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from palaestra.endpoints.clients import Style

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a chat model is asked.

    Attributes:
        model: its name at the endpoint.
        messages: of the conversation. Images are parts `image_url` with a data URL of a PNG file.
        tools: that it may call, each as `palaestra.tools.Tool.declaration` gives it.
        temperature: of sampling. max_tokens: most tokens of the reply.
        top_p, seed: None: they are not sent. Anthropic's protocol has no seed.
    """

    model: str
    messages: Messages
    temperature: float
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()
    top_p: float | None = None
    seed: int | None = None


def ask(client: Any, style: Style, request: ChatRequest) -> Reply:
    """Ask `Endpoint.client()` for one reply. Raises: the errors of the client; `Endpoint.failures` translates them."""
    return _READ[style](_method(client, style)(**_WRITTEN[style](request)))


async def ask_async(client: Any, style: Style, request: ChatRequest) -> Reply:
    """As `ask`, for `Endpoint.async_client()`."""
    return _READ[style](await _method(client, style)(**_WRITTEN[style](request)))


def _method(client: Any, style: Style) -> Any:
    return client.chat.completions.create if style == "openai" else client.messages.create


# ---- OpenAI -----------------------------------------------------------------------------------------------
def _to_openai(request: ChatRequest) -> dict[str, Any]:
    written: dict[str, Any] = {
        "model": request.model,
        "messages": list(request.messages),
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
    }
    if request.top_p is not None:
        written["top_p"] = request.top_p
    if request.seed is not None:
        written["seed"] = request.seed % 2**31
    if request.tools:
        written["tools"] = [dict(tool) for tool in request.tools]
    return written


def _of_openai(done: Any) -> Reply:
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
def _to_anthropic(request: ChatRequest) -> dict[str, Any]:
    """The protocol has no seed. A setting that is at its default is not sent, since some models refuse it."""
    system = "\n\n".join(_words(one["content"]) for one in request.messages if one["role"] in ("system", "developer"))
    said = [one for one in request.messages if one["role"] not in ("system", "developer")]
    own = {"temperature": request.temperature} if request.temperature != 1 else {}
    own |= {"top_p": request.top_p} if request.top_p is not None and request.top_p < 1 else {}
    return {
        "model": request.model,
        "messages": _turns(said),
        "max_tokens": request.max_tokens,
        "extra_body": own,
        **({"system": system} if system else {}),
        **({"tools": [_tool(tool) for tool in request.tools]} if request.tools else {}),
    }


def _of_anthropic(done: Any) -> Reply:
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


_WRITTEN = {"openai": _to_openai, "anthropic": _to_anthropic}
_READ = {"openai": _of_openai, "anthropic": _of_anthropic}
