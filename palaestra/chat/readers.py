"""Readers, which take the act out of a reply, so that a model may think before it acts.

The environment gets the act. The trajectory keeps the whole reply and its exact tokens. A reply in which no act can be
read is an invalid act: the environment gets an empty text, and the step's info has `invalid`. Nothing is guessed.
"""

from __future__ import annotations

import re
from typing import Protocol

from palaestra.chat.reply_calls import calls_of
from palaestra.registry import register
from palaestra.tools.calls import dumps
from palaestra.tools.formats import format_of

OPENED = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
CLOSED = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


class Reader(Protocol):
    """How a role's replies are read."""

    def read(self, reply: str) -> str | None:
        """The act; None, if none can be read."""
        ...

    def write(self, act: str) -> str:
        """A reply with this act, as a demonstration gives it: `read(write(act)) == act`."""
        ...

    def explain(self) -> str:
        """What the agent is told about the form of its replies; empty: nothing."""
        ...


def after_thoughts(reply: str) -> str | None:
    """The reply without its thoughts; None, if a thought is never closed.

    A template may have opened the first thought in the prompt, so that the reply has its end only.

    >>> after_thoughts("<think>hm</think> go"), after_thoughts("hm </think> go"), after_thoughts("<think> go")
    ('go', 'go', None)
    """
    outside, start = [], 0
    while (opened := OPENED.search(reply, start)) is not None:
        end = CLOSED.search(reply, opened.end())
        if end is None:
            return None
        outside.append(reply[start : opened.start()])
        start = end.end()
    rest = "".join([*outside, reply[start:]])
    closed = list(CLOSED.finditer(rest))
    if closed:
        rest = rest[closed[-1].end() :]
    return None if OPENED.search(rest) else rest.strip()


@register("reader", "bare")
class Bare:
    """The whole reply is the act."""

    def read(self, reply: str) -> str | None:
        return reply

    def write(self, act: str) -> str:
        return act

    def explain(self) -> str:
        return ""


@register("reader", "tagged")
class Tagged:
    """The act is between `<action>` and `</action>`, after any thought in `<think>…</think>`.

    Case and white space are free. A last `</action>` may be missing. Of several tags the last one counts. A tag inside
    a thought is no act, and a thought that is never closed hides the rest.
    """

    def __init__(self, *, tag: str = "action", think: bool = True) -> None:
        """
        Args:
            tag: the name of the tag.
            think: ask the model to think first. A thought is accepted in any case.
        """
        self._tag, self._think = tag, think
        name = re.escape(tag)
        self._opening = re.compile(rf"<\s*{name}\s*>", re.IGNORECASE)
        self._closing = re.compile(rf"<\s*/\s*{name}\s*>", re.IGNORECASE)

    def read(self, reply: str) -> str | None:
        rest = after_thoughts(reply)
        opened = [] if rest is None else list(self._opening.finditer(rest))
        if rest is None or not opened:
            return None
        act = self._closing.split(rest[opened[-1].end() :])[0].strip()
        return act or None

    def write(self, act: str) -> str:
        return f"<{self._tag}>{act}</{self._tag}>"

    def explain(self) -> str:
        first = "First think inside <think>…</think>. Then give" if self._think else "Give"
        return f"{first} your act inside <{self._tag}>…</{self._tag}>."


@register("reader", "last_line")
class LastLine:
    """The act is the last line that is not empty, after any thought. A leading `Action:` or `Answer:` is dropped."""

    LABEL = re.compile(r"^\s*(?:\*\*)?(?:final\s+)?(?:action|answer)(?:\*\*)?\s*:\s*(?:\*\*)?\s*", re.IGNORECASE)

    def read(self, reply: str) -> str | None:
        lines = (after_thoughts(reply) or "").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        return self.LABEL.sub("", last).strip() or None

    def write(self, act: str) -> str:
        return act

    def explain(self) -> str:
        return "You may think first. Give your act alone on the last line."


@register("reader", "tool_call")
class ToolCalls:
    """The act is the call of a tool in any of the usual forms, rewritten as `{"name": …, "arguments": {…}}`.

    It reads the forms of Hermes and Qwen, Llama, Mistral, gpt-oss, Qwen3-Coder and GLM (`palaestra.chat.reply_calls`).
    """

    def __init__(self, *, text: bool = False) -> None:
        """
        Args:
            text: a reply without a call is an act, too, such as a final answer. False: it cannot be read.
        """
        self._text = text

    def read(self, reply: str) -> str | None:
        parsed = calls_of(reply)
        if parsed.fault is not None:
            return None
        if parsed.calls:
            return "\n".join(format_of("json").write(call) for call in parsed.calls)
        return (after_thoughts(reply) or None) if self._text else None

    def write(self, act: str) -> str:
        calls = format_of("json").parse(act, {}).calls
        written = [dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls]
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written) if written else act

    def explain(self) -> str:
        return ""
