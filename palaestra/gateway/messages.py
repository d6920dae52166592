"""The messages of a chat as a client sends them, and as chat templates read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.chat import ChatRenderer
from palaestra.chat.template_tools import call_in_words, message_of, result_of, without_results
from palaestra.data import ToolCall
from palaestra.serving.rules import Refusal

ROLES = ("system", "developer", "user", "assistant", "tool")
Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message.

    Attributes:
        role: who speaks. text: what is said.
        thinking: the thought before a reply, if the client sends it back.
        calls: of a reply. answers: of a tool's result, the place of its call in the reply.
        name: of a tool's result, the tool.
    """

    role: str
    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: int = -1
    name: str = ""

    @property
    def key(self) -> str:
        """Equal for messages that say the same. Ids of calls do not count, and neither do thoughts."""
        calls = [[call.name, dict(call.arguments)] for call in self.calls]
        return json.dumps([self.role, self.text, calls, self.answers], sort_keys=True, ensure_ascii=False)


def digests(said: Sequence[Said], start: str = "") -> list[bytes]:
    """For each message, a hash of the chat up to it. `start`: what also tells chats apart, such as their tools."""
    hashed, found = hashlib.blake2b(start.encode(), digest_size=16), []
    for one in said:
        key = one.key.encode(errors="surrogatepass")
        hashed.update(len(key).to_bytes(8, "big") + key)
        found.append(hashed.digest())
    return found


def read_messages(given: Sequence[Given]) -> list[Said]:
    """The messages of a request. Results of tools that follow each other are in the order of their calls.

    Raises: Refusal, for a message that cannot be read, a call without a result, or a result without a call.
    """
    said: list[Said] = []
    open_calls: dict[str, int] = {}  # ids of calls that have no result yet → places
    names: dict[str, str] = {}
    results = 0
    for place, message in enumerate(given):
        where = f"messages.{place}"
        role = message.get("role")
        if role not in ROLES:
            raise Refusal(f"`{where}.role` is {role!r}; it must be one of {', '.join(ROLES)}.", param=where)
        if role == "tool":
            number = message.get("tool_call_id")
            if number not in open_calls:
                raise Refusal(f"`{where}` answers the call {number!r}, which no message before it makes.", param=where)
            answers = open_calls.pop(number)
            said.append(Said(role=role, text=_text(message, where), answers=answers, name=names[number]))
            results += 1
            if not open_calls:
                said[-results:] = sorted(said[-results:], key=lambda one: one.answers)
            continue
        _refuse_open(open_calls, where)
        results = 0
        if role != "assistant":
            said.append(Said(role=role, text=_text(message, where)))
            continue
        ids, calls = _calls(message.get("tool_calls") or (), where)
        open_calls = {number: place for place, number in enumerate(ids)}
        if len(open_calls) < len(ids):
            raise Refusal(f"two calls of `{where}` have the same id.", param=where)
        names = {number: call.name for number, call in zip(ids, calls, strict=True)}
        text = _text(message, where, may_lack=True)
        thinking = message.get("reasoning_content") or message.get("reasoning") or ""
        said.append(Said(role=role, text=text, thinking=str(thinking), calls=calls))
    _refuse_open(open_calls, "messages")
    return said


def _refuse_open(open_calls: Mapping[str, int], where: str) -> None:
    if open_calls:
        raise Refusal(
            "a message with `tool_calls` must be followed by a message of the role tool for each `tool_call_id`. "
            f"These have none before the end of `{where}`: {', '.join(open_calls)}.",
            param="messages",
        )


def _text(message: Given, where: str, *, may_lack: bool = False) -> str:
    content = message.get("content")
    if content is None and may_lack:
        return str(message.get("refusal") or "")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(f"`{where}.content` must be a text or a list of parts.", param=where)
    return "".join(_part(part, f"{where}.content.{place}") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text" if kind == "text" else "refusal") if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise Refusal(
            f"`{where}` is a part of the type {kind!r}. The server reads texts alone.", param=where, code="unsupported"
        )
    return text


def _calls(given: Any, where: str) -> tuple[list[str], tuple[ToolCall, ...]]:
    """The ids of the calls of a reply, and the calls."""
    ids, calls = [], []
    for place, call in enumerate(given):
        at = f"{where}.tool_calls.{place}"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refusal(f"`{at}` is no call of a function.", param=where)
        if not isinstance(call.get("id"), str):
            raise Refusal(f"`{at}.id` is missing.", param=where)
        ids.append(call["id"])
        calls.append(ToolCall(name=function["name"], arguments=_arguments(function.get("arguments"), at)))
    return ids, tuple(calls)


def _arguments(given: Any, where: str) -> dict[str, Any]:
    try:
        value = json.loads(given or "{}") if isinstance(given, str | None) else given
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(f"`{where}.function.arguments` must be a JSON object as a text.", param="messages")
    return value


def for_template(
    said: Sequence[Said], renderer: ChatRenderer, tools: Sequence[Given], *, begins: bool
) -> list[dict[str, Any]]:
    """The messages as a chat template reads them.

    Calls that the template does not write become words, as they do for templates without tools.

    Args:
        tools: that the chat declares. begins: these are all messages of the chat; False: those after its last reply.
    """
    written: list[dict[str, Any]] = []
    made, numbers = 0, [""]
    for one in said:
        if one.role == "tool":
            number = numbers[min(max(one.answers, 0), len(numbers) - 1)]
            written.append(result_of(one.text, one.name, number))
        elif one.role == "assistant":
            calls = [replace(call, id=f"past{made + place:05d}") for place, call in enumerate(one.calls)]
            numbers = [call.id for call in calls] or [""]
            written.append(_reply(one, calls, renderer, tools))
            made += len(calls)
        else:
            written.append({"role": one.role, "content": one.text})
    return without_results(written) if begins and not renderer.support.declares else written


def _reply(one: Said, calls: Sequence[ToolCall], renderer: ChatRenderer, tools: Sequence[Given]) -> dict[str, Any]:
    text = f"<think>\n{one.thinking}\n</think>\n\n{one.text}" if one.thinking else one.text
    if calls and renderer.support.calls:
        message = message_of(text, calls, as_text=renderer.support.as_text)
        if renderer.accepts(message, tools):
            return message
    return {"role": "assistant", "content": "\n".join(filter(None, [text, *map(call_in_words, calls)]))}
