"""Scripted dialogues with thoughts and calls, as our contexts and the gateway write them and as `apply_chat_template`
does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jinja2 import TemplateError

from palaestra.chat import ChatRenderer, FullHistory
from palaestra.chat.messages import with_thought
from palaestra.chat.template_tools import call_in_words, in_words, numbered, result_of, without_results
from palaestra.data import Observation, ToolCall
from palaestra.errors import InvalidData
from palaestra.gateway.messages import read_messages
from palaestra.gateway.models import prompt_of
from tests.chat.conversations import find, move
from tests.chat.templates import tokenizer_of

DECLARED = (find.declaration(), move.declaration())
FIND = ToolCall(name="find", arguments={"id": 7, "words": "two words"})
MOVE = ToolCall(name="move", arguments={"place": "hall"})
SYSTEM = "Be brief."
OPENED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")  # a thought that a prompt has opened
Message = dict[str, Any]


class Said(NamedTuple):
    """A reply of the policy."""

    words: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()


Script = tuple[str | tuple[str, ...] | Said, ...]  # texts of the user, results of tools, replies
SCRIPTS: dict[str, Script] = {
    "talk": ("2+2?", Said("four", "I add."), "3+3?", Said("six"), "4+4?", Said("eight", "Twice\nfour."), "Thanks."),
    "call": (
        "Seven?",
        Said(thought="I look.", calls=(FIND,)),
        ("7 is a lamp",),
        Said("A lamp.", "It is\na lamp."),
        "Go!",
        Said(calls=(MOVE,)),
        ("a hall",),
        Said("Done."),
        "Thanks.",
    ),
    "words": (
        "Seven?",
        Said("Let me see.", calls=(FIND,)),
        ("7 is a lamp",),
        Said("And now I go.", "There is a hall.", (MOVE,)),
        ("a hall",),
        Said("Done.", "All is done."),
        "Thanks.",
    ),
    "parallel": (
        "Seven, and go!",
        Said(thought="Both at once.", calls=(FIND, MOVE)),
        ("7 is a lamp", "a hall"),
        Said("Done."),
        "Thanks.",
    ),
}


class Compared:
    """Dialogues with the template of this name."""

    def __init__(self, name: str) -> None:
        self.tokenizer = tokenizer_of(name)
        self.renderer = ChatRenderer(self.tokenizer)

    # ---- as `apply_chat_template` writes them ---------------------------------------------------------------
    def applied(self, messages: Sequence[Message], *, speaks: bool, tools: Any = None) -> str:
        shaped = [dict(one, content=[{"type": "text", "text": one["content"]}]) for one in messages]
        return self.tokenizer.apply_chat_template(
            shaped if self.renderer._parts else list(messages),
            tools=list(tools or ()) or None,
            tokenize=False,
            add_generation_prompt=speaks,
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def shows(self, word: str, messages: Sequence[Message], tools: Any = None) -> bool:
        try:
            return word in self.applied(messages, speaks=False, tools=tools)
        except Exception:  # a template may refuse a message by any exception
            return False

    @cached_property
    def has_system(self) -> bool:
        return self.shows(SYSTEM, [system(SYSTEM), user("x")])

    @cached_property
    def declares(self) -> bool:
        return self.renderer.support.declares

    @cached_property
    def calls_as(self) -> str:
        """How the template reads calls: as an "object", as a "text", or "" for not at all."""
        for form in ("object", "text"):
            messages = [user("x"), called([FIND], form), result_of("y", "find", "call00000")]
            if self.declares and self.shows("two words", messages, DECLARED):
                return form
        return ""

    @cached_property
    def apart(self) -> bool:
        """Whether the template reads a thought apart from the words."""
        call, thought = called([FIND], self.calls_as or "object"), {"reasoning_content": "a thought"}
        later = [user("x"), call | thought, result_of("y", "find", "call00000")]
        plain = [user("x"), {"role": "assistant", "content": "y"} | thought]
        return self.shows("a thought", plain) or self.shows("a thought", later, DECLARED)

    def message(self, said: Said, number: int, *, opened: bool = False) -> Message:
        """A reply as the template reads it, whose first call has this number. opened: an empty thought counts, too."""
        message: Message = {"role": "assistant", "content": said.words}
        calls = [call_in_words(call) for call in said.calls]
        if said.calls and self.calls_as:
            message |= called(said.calls, self.calls_as, number)
            message["content"] = said.words
        else:
            message["content"] = "\n".join(filter(None, [said.words, *calls]))
        if said.thought and self.apart:
            message["reasoning_content"] = said.thought
        elif said.thought or (opened and self.opens and not self.apart):
            opening, closing = self.tags
            message["content"] = f"{opening}{said.thought}{closing}{message['content']}"
        return message

    @cached_property
    def opens(self) -> bool:
        """Whether a prompt opens the thought of the next reply."""
        return self.applied([user("x")], speaks=True).endswith("<think>\n")

    @cached_property
    def tags(self) -> tuple[str, str]:
        channels = "<|channel>" in self.tokenizer.chat_template
        return ("<|channel>thought\n", "\n<channel|>") if channels else ("<think>\n", "\n</think>\n\n")

    def messages(self, script: Script, tools: Any, *, gateway: bool = False) -> list[Message]:
        """The dialogue as the template reads it. The gateway knows no empty thoughts."""
        words = [SYSTEM, in_words(tools)] if tools and not self.declares else [SYSTEM]
        # Without a system role, the gateway's system message is a part of the user's, which stands after the tools.
        rules = "\n\n".join(reversed(words) if gateway and not self.has_system else words)
        messages, number, calls = [system(rules)], 0, ()
        for one in script:
            if isinstance(one, Said):
                messages.append(self.message(one, number, opened=not gateway))
                number, calls = number + len(one.calls), one.calls
            elif isinstance(one, str):
                messages.append(user(one))
            else:
                first = number - len(calls)
                messages += [
                    result_of(t, c.name, f"call{first + n:05d}")
                    for n, (t, c) in enumerate(zip(one, calls, strict=True))
                ]
        if not self.has_system:
            messages[:2] = [user(f"{rules}\n\n{messages[1]['content']}")]
        return messages if self.declares else without_results(messages)

    # ---- as the model writes its replies ----------------------------------------------------------------------
    def reply(self, prompt: str, said: Said, message: Message, tools: Any) -> str:
        """A reply in the form that the template teaches, with its end."""
        base = OPENED.sub("", self.applied([user("x")], speaks=True, tools=tools))
        whole = self.applied([user("x"), message], speaks=False, tools=tools)
        assert whole.startswith(base)
        opened, text = prompt[len(OPENED.sub("", prompt)) :], whole.removeprefix(base)
        opening, closing = self.tags
        if said.thought and said.thought not in text:  # some templates leave it out at once
            text = f"{opening}{said.thought}{closing}{text.lstrip()}"
        if text.startswith(opened):
            text = text.removeprefix(opened)
        elif opened.endswith("<think>\n"):
            is_thinking = text.startswith("<think>")
            text = text.removeprefix("<think>").lstrip() if is_thinking else f"\n</think>\n\n{text}"
        stops = [self.tokenizer.convert_ids_to_tokens(one) for one in self.renderer.stop]
        ends = [(text.index(one), one) for one in stops if one in text]
        return text[: min(ends)[0]] + min(ends)[1] if ends else text + stops[0]


class Difference(NamedTuple):
    """Where ours and the template's dialogue differ."""

    where: str
    have: str
    want: str


def differences(name: str, script: str) -> list[Difference]:
    """Play a script in training, ask for it at the gateway and demonstrate it, and compare it id for id."""
    try:
        return [*_differences(name, script), *_demonstrations(name, script)]
    except (TemplateError, InvalidData) as error:
        return [Difference("it is refused", "", str(error))]


def _differences(name: str, script: str) -> Iterator[Difference]:
    compared, turns = Compared(name), SCRIPTS[script]
    tools = DECLARED if any(isinstance(one, Said) and one.calls for one in turns) else None
    declared = tools if compared.declares else None
    renderer, talk = compared.renderer, FullHistory().start(compared.renderer)
    segment = shown = ""
    for place, turn in enumerate(turns):
        if isinstance(turn, Said):
            text = compared.reply(shown, turn, compared.message(turn, 0), declared)
            talk.respond(np.array(compared.ids(text), np.int32))
            segment += text
            continue
        want = compared.applied(compared.messages(turns[: place + 1], tools), speaks=True, tools=declared)
        prompt = talk.observe(observed(turn, tools if place == 0 else None, first=place == 0))
        said = renderer.said(prompt.ids)
        have = said if prompt.fresh else segment + said
        if have != want:
            yield Difference(f"training, turn {place}", have, want)
        elif compared.ids(have) != compared.ids(want):
            yield Difference(f"training, ids of turn {place}", have, want)
        if prompt.fresh and place and want.startswith(segment):
            yield Difference(f"training, turn {place} begins a segment", segment, want)
        segment, shown = have, want
        asked_for = compared.messages(turns[: place + 1], tools, gateway=True)
        ids = prompt_of(renderer, read_messages(asked(turns[: place + 1])), tools or (), {})
        want = compared.applied(asked_for, speaks=True, tools=declared)
        if ids.tolist() != compared.ids(want):
            yield Difference(f"gateway, turn {place}", renderer.said(ids), want)


def _demonstrations(name: str, script: str) -> Iterator[Difference]:
    """The replies of a script as demonstrations."""
    compared, turns = Compared(name), SCRIPTS[script]
    tools = DECLARED if any(isinstance(one, Said) and one.calls for one in turns) else None
    declared = tools if compared.declares else None
    renderer, talk = compared.renderer, FullHistory().start(compared.renderer)
    segment: list[int] = []
    number = 0
    for place, turn in enumerate(turns):
        if not isinstance(turn, Said):
            prompt = talk.observe(observed(turn, tools if place == 0 else None, first=place == 0))
            segment = [*([] if prompt.fresh else segment), *prompt.ids.tolist()]
            continue
        said = with_thought(turn.words, turn.thought)
        calls = numbered(turn.calls, number)
        if calls:
            ids = renderer.call(calls, tools or (), said=said, prompt=prompt.ids)
        else:
            ids = renderer.action(said, prompt=prompt.ids)
        shown = compared.applied(compared.messages(turns[:place], tools), speaks=True, tools=declared)
        want = shown + compared.reply(shown, turn, compared.message(turn, number), declared)
        talk.respond(ids)
        segment, number = [*segment, *ids.tolist()], number + len(calls)
        if segment != compared.ids(want):
            yield Difference(f"demonstration, turn {place}", renderer.said(np.array(segment)), want)


def observed(turn: str | tuple[str, ...], tools: Any, *, first: bool) -> Observation:
    instruction = SYSTEM if first else None
    if isinstance(turn, str):
        return Observation(text=turn, instruction=instruction, tools=tools)
    return Observation(text="x", messages=[result_of(text) for text in turn], instruction=instruction, tools=tools)


def asked(turns: Script) -> list[Message]:
    """The messages as a client of OpenAI's protocol sends them."""
    messages: list[Message] = [system(SYSTEM)]
    number, open_calls = 0, []
    for one in turns:
        if isinstance(one, Said):
            message: Message = {"role": "assistant", "content": one.words or None}
            message |= {"reasoning_content": one.thought} if one.thought else {}
            open_calls = [f"id{number + n}" for n in range(len(one.calls))]
            number += len(one.calls)
            calls = [
                {"id": i, "type": "function", "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))}}
                for i, c in zip(open_calls, one.calls, strict=True)
            ]
            messages.append(message | ({"tool_calls": calls} if calls else {}))
        elif isinstance(one, str):
            messages.append(user(one))
        else:
            answers = zip(open_calls, one, strict=True)
            messages += [{"role": "tool", "tool_call_id": number, "content": text} for number, text in answers]
    return messages


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def called(calls: Sequence[ToolCall], form: str, number: int = 0) -> Message:
    """A reply with calls, the first of which has this number."""
    made = []
    for place, call in enumerate(calls, start=number):
        arguments: Mapping[str, Any] | str = dict(call.arguments)
        arguments = json.dumps(arguments) if form == "text" else arguments
        made.append(
            {"type": "function", "id": f"call{place:05d}", "function": {"name": call.name, "arguments": arguments}}
        )
    return {"role": "assistant", "content": "", "tool_calls": made}


def row_of(name: str) -> dict[str, Any]:
    """What a template does with thoughts and tools, and where its dialogues differ from ours."""
    compared = Compared(name)
    tools = {(False, ""): "none", (True, ""): "declared"}.get((compared.declares, compared.calls_as), "all")
    found = {script: [one.where for one in differences(name, script)] for script in SCRIPTS}
    found = {script: places for script, places in found.items() if places}
    return {
        "thoughts": "apart" if compared.apart else "inside",
        "tools": tools,
        **({"differs": found} if found else {}),
    }
