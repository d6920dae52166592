"""Contexts, which turn an agent's history into prompt ids: the full history, a window, or the latest observation.

A conversation only appends ids and never renders an earlier turn again. A new segment repeats the ids of the turns that
it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from palaestra.chat.places import PLACE
from palaestra.chat.render import NONE, ChatRenderer, Tools, user
from palaestra.chat.renderers import Renderer, head_of
from palaestra.chat.template_thoughts import VERBATIM
from palaestra.chat.template_tools import numbered
from palaestra.chat.thoughts import LEFT_OPEN, OWN, PAIRS, in_channels, reply_of, thoughts_in, usual, without_thoughts
from palaestra.data import Observation, ToolCall
from palaestra.data.protocols import Context, Conversation, Prompt
from palaestra.registry import PositiveInt, register
from palaestra.tools.calls import Parsed

Thoughts = Literal["template", "keep", "strip"]
CLOSINGS = tuple(closing for _, closing in PAIRS)
LOST = "lost"  # field of a result whose call was dropped
Variables = dict[str, bool | int | float | str]


@dataclass(slots=True)
class _Appending:
    """One segment for the whole episode."""

    renderer: Renderer
    length: int = 0

    def observe(self, observation: Observation) -> Prompt:
        first = self.length == 0
        ids = self.renderer.observation(observation, first=first)
        if first:
            ids = np.concatenate([head_of(self.renderer, observation), ids])
        self.length += len(ids)
        return Prompt(ids, 0, first)

    def respond(self, ids: np.ndarray) -> None:
        self.length += len(ids)


class Dialogue:
    """A conversation by a chat template, which writes the whole dialogue at every turn.

    Where the template only adds to what it wrote before, the turn is added to the segment. Where it writes an earlier
    turn in another way, for instance without the thoughts of a reply, a new segment begins with the dialogue as the
    template writes it now. What was sampled stays exact in the segment in which it was sampled.

    The calls of a reply stay as they were sampled, too, also where the template would write them in another form.

    Args:
        turns: most turns in a prompt; None: all. The results of a role's own tools belong to the turn of their call.
            Those of an environment's tools begin a turn.
        drop: number of turns that are dropped at once. keep_first: never drop the first turn.
        thoughts: what becomes of the thoughts of earlier turns. variables: further variables of the template.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        turns: int | None = None,
        drop: int = 1,
        keep_first: bool = False,
        *,
        thoughts: Thoughts = "template",
        variables: Mapping[str, Any] = NONE,
    ) -> None:
        self._renderer, self._turns, self._drop, self._keep_first = renderer, turns, drop, keep_first
        self._thoughts, self._variables = thoughts, variables
        self._held: list[list[dict[str, Any]]] = []  # the messages of each held turn, its replies among them
        self._instruction: str | None = None
        self._tools: Tools = ()
        self._before = ""  # what the template wrote at the last prompt
        self._reply = _Reply()
        self._calls = 0
        self._segment, self._fresh = -1, True
        self.length = 0

    def observe(self, observation: Observation) -> Prompt:
        first = self._segment < 0
        if first:
            self._instruction, self._tools = observation.instruction, tuple(observation.tools or ())
        new = self._renderer.turn(observation, first=first)
        answers = bool(self._held) and new[0]["role"] == "tool"
        if answers:
            new = [{**one, **self._reply.call(n)} if one["role"] == "tool" else one for n, one in enumerate(new)]
        # An environment says at every observation which tools it has. The result of a role's own tool does not.
        if answers and not observation.tools:
            self._held[-1] += new
        else:
            if self._reply.called and new[0]["role"] == "user":  # the environment has answered the calls
                images = [user("") | {"pictures": new[0]["pictures"]}] if "pictures" in new[0] else []
                said = {name: value for name, value in new[0].items() if name != "pictures"}
                said["content"] = said["content"].replace(PLACE, "")
                result = {**said, "role": "tool", **self._reply.call(-1)}
                new = [result, *images, *new[1:]]
            self._held.append(new)
        if self._turns is not None and len(self._held) > self._turns:
            pinned = 1 if self._keep_first and self._turns > 1 else 0
            del self._held[pinned : pinned + min(self._drop, len(self._held) - 1 - pinned)]
            self._fresh = True
        written, added = self._written(), None
        if not self._fresh:
            added = self._added(written, new)
            if added is None:
                written, added = self._otherwise(new) or (written, None)
        fresh = added is None
        ids, pictures = self._renderer.ids_with(written if added is None else added, self._images())
        self._segment += fresh
        self.length = len(ids) if fresh else self.length + len(ids)
        self._before, self._fresh = written, False
        return Prompt(ids, self._segment, fresh, pictures)

    def _images(self) -> list[np.ndarray]:
        return [image for turn in self._held for message in turn for image in message.get("pictures", ())]

    # ---- the dialogue as the template writes it -----------------------------------------------------------
    def _written(self) -> str:
        keep = self._thoughts == "keep"
        messages = _joined(self._messages())
        return self._renderer.written(messages, tools=self._tools, keep=keep, variables=self._variables)

    def _messages(self) -> list[dict[str, Any]]:
        """All messages of the dialogue. A result whose call was dropped is a message of the user."""
        messages: list[dict[str, Any]] = []
        for place, turn in enumerate(self._held):
            stripped = self._thoughts == "strip" and place < len(self._held) - 1
            for message in turn:
                if message["role"] == "tool" and not self._answers(messages):
                    message = {"role": "user", "content": message["content"], LOST: True}
                messages.append(without_thoughts(message) if stripped else message)
        return self._renderer.led(self._instruction, messages, self._tools)

    def _answers(self, before: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a result can follow these messages in the template."""
        last = before[-1] if before else {"role": ""}
        alone = last["role"] == "assistant" and self._renderer.support.alone
        return last["role"] == "tool" or "tool_calls" in last or alone

    def _added(self, written: str, new: Sequence[Mapping[str, Any]]) -> str | None:
        """What follows the last reply, if the template writes all before as the segment shows it; else None."""
        reply = self._reply
        if written.startswith(self._before):
            rest = written[len(self._before) :]
            for text in reply.texts:
                if rest.startswith(text):
                    return rest[len(text) :]
            end = self._renderer.end_in(rest)
            if "tool_calls" in reply.message and end is not None and self._begins_alike(rest[: end[0]]):
                if not reply.end:
                    return rest[end[0] :]
                if reply.end.endswith(rest[slice(*end)]):
                    return rest[end[1] :]
        if self._thoughts != "keep":
            return None
        after = _joined(self._messages()[-len(new) :])
        follows = self._renderer.following(reply.message, after, self._tools, variables=self._variables)
        end = self._renderer.end_in(follows)
        return follows if end is None else follows[end[1] if reply.end else end[0] :]

    def _begins_alike(self, written: str) -> bool:
        """Whether the template's text of the last reply has its thoughts and words as the segment shows them."""
        renderer, reply = self._renderer, self._reply
        words = str(without_thoughts(reply.message)["content"]).split("\n")
        said = [renderer.as_written(text.strip()) for text in (*reply.thoughts, *words)]
        ends = [renderer.as_written(closing) for closing in CLOSINGS]
        for text in reply.texts:
            shared = _common_start(written, text)
            closed = all(shared.count(end) == written.count(end) == text.count(end) for end in ends)
            if closed and all(one in shared for one in said):
                return True
        return False

    def _otherwise(self, new: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """The dialogue, and what follows the last reply, with that reply in another form that keeps what was sampled.

        A template may read a thought inside the words, too, and then keeps the white space around it. Some templates
        write a space before a reply, and the model has sampled it, too.
        """
        message = self._reply.message
        content = message.get("content", "")
        thought = OWN.match(content)
        forms: list[dict[str, Any]] = []
        if (
            thought is not None
            and any(map(str.strip, filter(None, thought.groups())))
            and thought[0].rstrip().endswith(CLOSINGS)
        ):
            forms.append({VERBATIM: True})
        if "tool_calls" not in message and content != content.lstrip():
            forms.append({"content": content.lstrip()})
        for form in forms:
            as_it_was = dict(message)
            message |= form
            written = self._written()
            added = self._added(written, new)
            if added is not None:
                return written, added
            message.clear()
            message |= as_it_was
        return None

    def respond(self, ids: np.ndarray) -> None:
        renderer, kept = self._renderer, [int(i) for i in ids]
        closing = renderer.closing
        count = next((n for n in range(len(closing), 0, -1) if tuple(kept[-n:]) == closing[:n]), 0)
        kept = kept[: len(kept) - count]
        end = renderer.closed(count)
        other_end = bool(kept) and not count and kept[-1] in renderer.stop
        if other_end:  # an end that the template may not write
            end = renderer.name_of(kept.pop())
        said = renderer.said(np.array(kept, np.int32))
        _, opened = renderer.opened(self._before)
        left_open = LEFT_OPEN.search(opened) is not None
        opened = opened if left_open or self._thoughts == "keep" else ""
        thinks = left_open and "</think>" not in usual(said)  # to the end, so it calls nothing
        parsed = renderer.calls(said, self._tools) if self._tools and not thinks else Parsed()
        calls = numbered(parsed.calls, self._calls)
        self._calls += len(calls)
        message = self._calling(said, parsed, calls, opened) if calls else None
        if message is None:
            message = reply_of(said, opened=opened)
            self._fresh = self._fresh or (other_end and self._thoughts != "keep")
        called = bool(calls) or parsed.fault is not None
        texts = (renderer.as_written(said) + end, renderer.as_sampled(said) + end)
        self._reply = _Reply(message, texts, end, thoughts_in(message), calls, called)
        self._held[-1].append(message)
        self.length += len(ids)

    def _calling(self, said: str, parsed: Parsed, calls: Sequence[ToolCall], opened: str) -> dict[str, Any] | None:
        """The message of a reply with calls; None, if the template does not write it."""
        around = reply_of(said if in_channels(said) else parsed.said, opened=opened)
        return self._renderer.calling(around, calls, self._tools)


def _common_start(first: str, second: str) -> str:
    count = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return first[:count] if count is not None else min(first, second, key=len)


def _joined(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with results that follow each other as one message of the user where their calls were dropped.

    Many templates refuse two messages of the user in a row.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        after_result = bool(joined) and LOST in joined[-1] and message["role"] == "user"
        if after_result:
            texts = [text for text in (joined[-1]["content"], message["content"]) if text]
            joined[-1] = {**message, "content": "\n".join(texts)}
        else:
            joined.append(dict(message))
    return [{name: value for name, value in message.items() if name != LOST} for message in joined]


@dataclass(slots=True)
class _Reply:
    """The last reply of a dialogue.

    Attributes:
        message: as the template gets it. texts: as the segment shows it, with its `end`; in the first, special tokens
            other than tags are plain text. thoughts: the texts of its thoughts. calls: its calls. called: whether it
            tried to call.
    """

    message: dict[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    end: str = ""
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    called: bool = False

    def call(self, place: int) -> dict[str, str]:
        """What a result says of the call that it answers."""
        if not self.calls:
            return {}
        call = self.calls[min(place, len(self.calls) - 1)]
        return {"name": call.name, "tool_call_id": call.id}


@register("context", "full_history")
class FullHistory(Context):
    """The prompt has everything since the start of the episode. It is one segment, so the engine reads each id once."""

    keeps_messages = True  # it declares tools by a chat template (palaestra.registry)

    def __init__(self, *, thoughts: Thoughts = "template", template: Variables | None = None) -> None:
        """
        Args:
            thoughts: of earlier replies, for chat templates. "template": kept or left out as the template does it.
                "keep": never left out, so the whole episode stays one segment. "strip": left out of the earlier turns,
                so a reply with a thought ends its segment.
            template: further variables of the chat template, such as `{enable_thinking: false}`.
        """
        self._thoughts, self._template = thoughts, template or {}

    def start(self, renderer: Renderer) -> Conversation:
        if not isinstance(renderer, ChatRenderer):
            return _Appending(renderer)
        renderer.refuse_unknown(self._template)
        return Dialogue(renderer, thoughts=self._thoughts, variables=self._template)


class _Windowed:
    """Keeps whole turns. When it is full, it drops the oldest ones and starts a segment with the rest."""

    def __init__(self, renderer: Renderer, turns: int, drop: int, keep_first: bool) -> None:
        self._renderer, self._turns, self._drop, self._keep_first = renderer, turns, drop, keep_first
        self._held: list[np.ndarray] = []  # prompt and response ids of each held turn
        self._head = np.zeros(0, np.int32)
        self._segment, self._opened = 0, False
        self.length = 0

    def observe(self, observation: Observation) -> Prompt:
        fresh = not self._opened
        if fresh:
            self._head = head_of(self._renderer, observation)
        if len(self._held) >= self._turns:
            pinned = 1 if self._keep_first and self._turns > 1 else 0
            del self._held[pinned : pinned + min(self._drop, len(self._held) - pinned)]
            self._segment += 1
            fresh = True
        ids = self._renderer.observation(observation, first=not self._held)
        prompt = np.concatenate([self._head, *self._held, ids]).astype(np.int32) if fresh else ids
        self._held.append(ids)
        self._opened = True
        self.length = len(self._head) + sum(len(turn) for turn in self._held)
        return Prompt(prompt, self._segment, fresh)

    def respond(self, ids: np.ndarray) -> None:
        self._held[-1] = np.concatenate([self._held[-1], ids]).astype(np.int32)
        self.length += len(ids)


@register("context", "window")
class Window(Context):
    """The prompt has the last turns only. A new segment repeats the ids of the turns that are kept."""

    keeps_messages = True  # it declares tools by a chat template (palaestra.registry)

    def __init__(
        self,
        *,
        turns: PositiveInt = 4,
        drop: PositiveInt = 1,
        keep_first: bool = False,
        thoughts: Thoughts = "template",
        template: Variables | None = None,
    ) -> None:
        """
        Args:
            turns: most turns in a prompt, the present one included. Higher: longer memory, more tokens.
            drop: number of turns that are dropped at once when the window is full. Higher: fewer segments, so fewer ids
                are read twice.
            keep_first: never drop the first turn, which often states the goal.
            thoughts, template: as in `full_history`.
        """
        self._turns, self._drop, self._keep_first = turns, drop, keep_first
        self._thoughts, self._template = thoughts, template or {}

    def start(self, renderer: Renderer) -> Conversation:
        window = (self._turns, self._drop, self._keep_first)
        if not isinstance(renderer, ChatRenderer):
            return _Windowed(renderer, *window)
        renderer.refuse_unknown(self._template)
        return Dialogue(renderer, *window, thoughts=self._thoughts, variables=self._template)


@register("context", "latest_only")
class LatestOnly(Context):
    """The prompt has the present observation only, so each turn is a segment. For observations that say everything."""

    keeps_messages = True  # it declares tools by a chat template (palaestra.registry)

    def __init__(self, *, template: Variables | None = None) -> None:
        """
        Args:
            template: further variables of the chat template, such as `{enable_thinking: false}`.
        """
        self._template = template or {}

    def start(self, renderer: Renderer) -> Conversation:
        if not isinstance(renderer, ChatRenderer):
            return _Windowed(renderer, 1, 1, False)
        renderer.refuse_unknown(self._template)
        return Dialogue(renderer, 1, variables=self._template)
