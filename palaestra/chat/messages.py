"""The one reader of chat messages and of declared tools, as data files and clients write them.

A message has the form of OpenAI's protocol: `role`, `content`, `tool_calls`, `tool_call_id`, `name` and
`reasoning_content`. The older form with `function_call` and the role `function` is read, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from palaestra.chat.reply_calls import calls_of
from palaestra.chat.template_tools import call_in_words
from palaestra.data import Action, ToolCall
from palaestra.tools.calls import Unreadable, loads

ROLES = ("system", "developer", "user", "assistant", "tool")
FORMER = {"function": "tool"}  # roles of earlier protocols
PARTS = ("text", "refusal", "image", "image_url")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # vLLM and most others; OpenRouter; gpt-oss
# Keys that a message may have, by its role. All roles may have a name.
KEYS = {
    "assistant": ("tool_calls", "function_call", "refusal", "weight", *THOUGHTS),
    "tool": ("tool_call_id",),
}
Given = Mapping[str, Any]
Part = Mapping[str, Any]


class MessageFault(Exception):
    """A message or a declared tool cannot be read.

    Attributes:
        what: the fault, a sentence without its point. place: of the message in its list, with the key inside of it.
        unsupported: the message is right, but it holds something that no policy reads.
    """

    def __init__(self, what: str, place: str = "", *, unsupported: bool = False) -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self.what, self.place, self.unsupported = what, place, unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: who speaks, one of `ROLES`.
        content: a text; or parts, if there are images among them.
        thinking: the thought before a reply.
        calls: of a reply, each with an id. answers: of a tool's result, the place of its call in the reply.
        name: of the speaker; of a tool's result, the tool. number: of a tool's result, the id of its call.
        learned: whether a reply is learned from, where the messages are a demonstration.
    """

    role: str
    content: str | tuple[Part, ...] = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: int = -1
    name: str = ""
    number: str = ""
    learned: bool = True

    @property
    def text(self) -> str:
        """The words of the message, without its images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part["text"] for part in self.content if part["type"] == "text")

    @property
    def is_empty(self) -> bool:
        """Whether the message says nothing. A tool may give an empty result."""
        return isinstance(self.content, str) and not self.content.strip() and not self.calls and self.role != "tool"

    def as_given(self) -> dict[str, Any]:
        """The message in OpenAI's form, with the arguments of calls as objects, as contexts and templates read it."""
        made: dict[str, Any] = {"role": self.role, "content": self.content}
        if not isinstance(self.content, str):
            made["content"] = [dict(part) for part in self.content]
        made |= {"name": self.name} if self.name else {}
        made |= {"reasoning_content": self.thinking} if self.thinking else {}
        made |= {"tool_calls": [call_as_given(call) for call in self.calls]} if self.calls else {}
        return made | ({"tool_call_id": self.number} if self.role == "tool" else {})


def call_as_given(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's form, with its arguments as an object."""
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}


@dataclass(slots=True)
class MessageReader:
    """Reads messages.

    Args:
        ids: "demanded": each call and each result has its id, as in a request; "free": results without one answer the
            calls in their order, and the last calls may have no result yet.
        images: keep images; False: a message with one is unsupported.

    Attributes:
        unread: keys of messages that have a value and are not read.
    """

    ids: Literal["demanded", "free"] = "free"
    images: bool = True
    unread: set[str] = field(default_factory=set)

    def read(self, given: Any) -> list[Message]:
        """The messages of a list. Results of tools that follow each other are in the order of their calls.

        Raises: MessageFault, for a message that cannot be read, a call without a result, or a result without a call.
        """
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise MessageFault("it is no list of messages")
        messages: list[Message] = []
        waiting = _Waiting()
        results = made = 0
        for place, message in enumerate(given):
            where = str(place)
            if not isinstance(message, Mapping):
                raise MessageFault(f"{_short(message)} is no message", where)
            role = self._role(message, where)
            if role == "tool":
                answers, call = waiting.answered(message, where, demanded=self.ids == "demanded")
                content = self._content(message, where)
                messages.append(Message(role=role, content=content, answers=answers, name=call.name, number=call.id))
                results += 1
                if not waiting.calls:
                    messages[-results:] = sorted(messages[-results:], key=lambda one: one.answers)
                continue
            waiting.refuse(where)
            results = 0
            read = self._reply(message, where, made) if role == "assistant" else self._plain(message, role, where)
            made += len(read.calls)
            waiting = _Waiting(dict(enumerate(read.calls)), numbered=_has_ids(message))
            messages.append(read)
        if self.ids == "demanded" or results:
            waiting.refuse("")
        return messages

    def _role(self, message: Given, where: str) -> str:
        role = message.get("role")
        role = FORMER.get(role, role) if isinstance(role, str) else role
        if role not in ROLES:
            raise MessageFault(f"`role` is {role!r}; it must be one of {', '.join(ROLES)}", where)
        known = {"role", "content", "name", *KEYS.get(role, ())}
        self.unread |= {str(key) for key, value in message.items() if key not in known and value is not None}
        return str(role)

    def _plain(self, message: Given, role: str, where: str) -> Message:
        return Message(role=role, content=self._content(message, where), name=_name(message, where))

    def _reply(self, message: Given, where: str, made: int) -> Message:
        calls = _calls(message, where, made, demanded=self.ids == "demanded")
        thoughts = {name: message[name] for name in THOUGHTS if message.get(name)}
        if len({*map(str, thoughts.values())}) > 1:
            raise MessageFault(f"{' and '.join(f'`{name}`' for name in thoughts)} differ; give one of them", where)
        thinking = next(iter(thoughts.values()), "")
        if not isinstance(thinking, str):
            raise MessageFault(f"`{next(iter(thoughts))}` is no text", where)
        return Message(
            role="assistant",
            content=self._content(message, where, may_lack=bool(calls or thinking) or self.ids == "demanded"),
            thinking=thinking,
            calls=calls,
            name=_name(message, where),
            learned=_weight(message, where),
        )

    def _content(self, message: Given, where: str, *, may_lack: bool = False) -> str | tuple[Part, ...]:
        content = message.get("content")
        if content is None and message.get("refusal"):
            content = message["refusal"]
        if content is None and may_lack:
            return ""
        if isinstance(content, str):
            return content
        if content is None:
            raise MessageFault("`content` is missing", where)
        if not isinstance(content, list | tuple) or not content:
            raise MessageFault("`content` must be a text or a list of parts", where)
        parts = [self._part(part, f"{where}.content.{place}") for place, part in enumerate(content)]
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)  # as vLLM joins them
        return tuple(parts)

    def _part(self, part: Any, where: str) -> Part:
        """A part of a content, without keys that have no value."""
        if isinstance(part, str):  # vLLM reads a bare text, too
            return {"type": "text", "text": part}
        kept = {name: value for name, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
        kind = kept.get("type")
        if kind in ("text", "refusal") and isinstance(kept.get(kind), str):
            return {"type": "text", "text": kept[kind]}
        if kind in PARTS[2:] and self.images:
            return kept
        reads = "texts and images" if self.images else "texts alone"
        what = f"it is a part of the type {kind!r}, and {reads} can be read"
        raise MessageFault(what, where, unsupported=True)


@dataclass(slots=True)
class _Waiting:
    """The calls of the last reply that have no result yet, by their places. `numbered`: they came with ids."""

    calls: dict[int, ToolCall] = field(default_factory=dict)
    numbered: bool = True

    def answered(self, message: Given, where: str, *, demanded: bool) -> tuple[int, ToolCall]:
        """The call that a result answers, and its place. It waits no longer. Raises: MessageFault, without one."""
        number, name = message.get("tool_call_id"), message.get("name")
        in_order = not demanded and (number is None or not self.numbered)
        if in_order:
            fits = [(place, call) for place, call in self.calls.items() if not name or call.name == name]
        else:
            fits = [(place, call) for place, call in self.calls.items() if call.id == number]
        if not fits:
            answered = f"a call of `{name}`" if in_order and name else "a call" if in_order else f"the call {number!r}"
            raise MessageFault(f"it answers {answered}, which the reply before it does not make", where)
        place, call = fits[0]
        del self.calls[place]
        return place, call

    def refuse(self, where: str) -> None:
        """Raises: MessageFault, if a call has no result."""
        if self.calls:
            named = ", ".join(call.id for call in self.calls.values())
            raise MessageFault(
                "a message with `tool_calls` must be followed by a message of the role tool for each `tool_call_id`. "
                f"These have none before {f'message {where}' if where else 'the end'}: {named}"
            )


# ---- keys of a message ------------------------------------------------------------------------------------
def _name(message: Given, where: str) -> str:
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise MessageFault("`name` is no text", where)
    return name or ""


def _weight(message: Given, where: str) -> bool:
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        raise MessageFault(f"`weight` is {_short(weight)}; it must be 0 or 1", where)
    return weight != 0


def _has_ids(message: Given) -> bool:
    calls = message.get("tool_calls")
    return any(isinstance(call, Mapping) and call.get("id") for call in calls or ()) if calls else False


def _calls(message: Given, where: str, made: int, *, demanded: bool) -> tuple[ToolCall, ...]:
    """The calls of a reply. Those without an id get one, by their number in the conversation."""
    given, former = message.get("tool_calls") or (), message.get("function_call")
    if given and former:
        raise MessageFault("it has both `tool_calls` and `function_call`", where)
    if former:
        return (_call({"function": former}, f"{where}.function_call", f"call{made:05d}"),)
    if not isinstance(given, list | tuple):
        raise MessageFault("`tool_calls` is no list", where)
    calls = []
    for place, call in enumerate(given):
        at = f"{where}.tool_calls.{place}"
        calls.append(_call(call, at, None if demanded else f"call{made + place:05d}"))
    if len({call.id for call in calls}) < len(calls):
        raise MessageFault("two of its calls have the same id", where)
    return tuple(calls)


def _call(given: Any, where: str, usual: str | None) -> ToolCall:
    """A call. `usual`: its id, if it has none; None: it must have one."""
    bare = isinstance(given, Mapping) and "function" not in given  # `{"name", "arguments"}`, as TRL reads it, too
    function = given if bare else given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise MessageFault("it is no call of a function", where)
    number = given.get("id") or usual
    if not isinstance(number, str):
        raise MessageFault("`id` is missing" if number is None else "`id` is no text", where)
    return ToolCall(name=function["name"], arguments=_arguments(function.get("arguments"), where), id=number)


def _arguments(given: Any, where: str) -> dict[str, Any]:
    value = given
    if given is None or isinstance(given, str):
        text = (given or "").strip() or "{}"
        try:
            value, end = loads(text)
        except Unreadable as error:
            raise MessageFault(f"`arguments`: {error}", where) from None
        value = value if end == len(text) else None
    if not isinstance(value, Mapping):
        raise MessageFault("`arguments` must be a JSON object, or one as a text", where)
    return dict(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# ---- declared tools ---------------------------------------------------------------------------------------
def read_tools(given: Any) -> tuple[dict[str, Any], ...]:
    """The declarations of a list of tools, or of one as a JSON text, in the form of `palaestra.tools.Tool.declaration`.

    A function without `type` and `function` around it is read, too, and so are parameters as a JSON text.

    Raises: MessageFault, for anything else, and for two tools of one name.
    """
    tools = _from_text(given, "") if isinstance(given, str) and given.strip() else given or ()
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise MessageFault("it must be a list of tools, or one as a JSON text")
    declared = tuple(_tool(tool, str(place)) for place, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in declared]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MessageFault(f"two tools are called `{twice}`")
    return declared


def _tool(given: Any, where: str) -> dict[str, Any]:
    given = _from_text(given, where) if isinstance(given, str) else given
    if isinstance(given, Mapping) and "function" not in given and "name" in given:
        given = {"type": "function", "function": {name: value for name, value in given.items() if name != "type"}}
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise MessageFault("it is no function: it needs `type` and `function`", where)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise MessageFault("`function.name` is missing", where)
    parameters = function.get("parameters")
    if isinstance(parameters, str):
        parameters = _from_text(parameters, f"{where}.function.parameters")
    if not isinstance(parameters, Mapping | None):
        raise MessageFault("`function.parameters` must be a JSON schema", where)
    whole = {**function, "parameters": dict(parameters or {"type": "object", "properties": {}})}
    return {**given, "type": "function", "function": whole}


def _from_text(text: str, where: str) -> Any:
    try:
        value, end = loads(text.strip())
    except Unreadable as error:
        raise MessageFault(str(error), where) from None
    if text.strip()[end:]:
        raise MessageFault("text follows the JSON value", where)
    return value


# ---- replies ----------------------------------------------------------------------------------------------
def with_thought(text: str, thinking: str) -> str:
    """A reply with its thought before it, in the form in which readers and actions have it."""
    return f"<think>\n{thinking}\n</think>\n\n{text}" if thinking else text


def words_beside(action: Action, tools: Sequence[Mapping[str, Any]]) -> str:
    """What an action says beside its `tool_calls`. Its text may spell the same calls, as a reply of a model does."""
    text = action.text or ""
    parsed = calls_of(text, tools)
    spelled, meant = ([(one.name, dict(one.arguments)) for one in some] for some in (parsed.calls, action.tool_calls))
    return parsed.said if spelled == meant else text


def reply_of(action: Action, made: int = 0) -> Message:
    """The message of an action: its words, and its calls.

    Args:
        made: number of calls before it, by which those without an id get one.
    """
    if not action.tool_calls:
        return Message(role="assistant", content=str(action.value) if action.text is None else action.text)
    calls = [call if call.id else replace(call, id=f"call{n:05d}") for n, call in enumerate(action.tool_calls, made)]
    words = words_beside(action, ()) if action.reply is None else calls_of(action.reply).said
    return Message(role="assistant", content=words, calls=tuple(calls))


class Writer(Protocol):
    """A renderer by a chat template, which says what the template writes of a reply with calls."""

    def calling(
        self, reply: Mapping[str, Any], calls: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any] | None: ...


def fit_replies(
    messages: Sequence[Mapping[str, Any]], writer: Writer, tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages whose calls have the form that a chat template reads.

    Calls that the template does not write become words. Ids of calls that it refuses are replaced.
    """
    made: list[dict[str, Any]] = []
    renamed: dict[str, str] = {}
    count = 0
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" in message:
            reply = _fit_reply(message, writer, tools, count)
            calls = message["tool_calls"]
            for old, new in zip(calls, reply.get("tool_calls", ()), strict=False):
                renamed[old["id"]] = new["id"]
            count += len(calls)
            made.append(reply)
        elif message.get("tool_call_id") in renamed:
            made.append({**message, "tool_call_id": renamed[message["tool_call_id"]]})
        else:
            made.append(dict(message))
    return made


def _fit_reply(
    message: Mapping[str, Any], writer: Writer, tools: Sequence[Mapping[str, Any]], count: int
) -> dict[str, Any]:
    """A reply after `count` calls as a chat template reads it."""
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    given = [(call["id"], call["function"]) for call in message["tool_calls"]]
    calls = [ToolCall(name=one["name"], arguments=one["arguments"], id=number) for number, one in given]
    others = [replace(call, id=f"past{n:05d}") for n, call in enumerate(calls, count)]
    for some in (calls, others):
        reply = writer.calling(kept, some, tools)
        if reply is not None:
            return reply
    return {**kept, "content": "\n".join(filter(None, [kept["content"], *map(call_in_words, calls)]))}
