"""Thoughts in chat templates: under which key a template reads the thought of an earlier reply, if it reads one apart
from the words, and what stands in for a template that reads none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.chat.template_tools import TOOL, message_of, result_of
from palaestra.chat.thoughts import KEYS, apart
from palaestra.data import ToolCall
from palaestra.errors import EpisodeFailure

THOUGHT = "zqthoughtzq"  # it occurs in no template
SAID = "zqsaidzq"
USER = {"role": "user", "content": "x"}
PLAIN = {"role": "assistant", "content": SAID}
VERBATIM = "verbatim"  # field of a reply whose thought stays inside its content
# A token of a template or its tokenizer, and what then stands around a thought inside the words.
INSIDE = (
    ("<think>", "<think>\n", "\n</think>\n\n"),
    ("[THINK]", "[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>", "<|channel>thought\n", "\n<channel|>"),
    ("", "<think>\n", "\n</think>\n\n"),
)
Write = Callable[..., str]  # a dialogue, as the template's text


class ThoughtForm(NamedTuple):
    """How a chat template takes the thought of a reply.

    Attributes:
        key: of a message, under which the template reads it; "": it reads the words alone.
        opening, closing: what then stands around a thought inside the words.
        shows_last: it writes a thought under the key before the last reply, also without calls.
        shows_empty: it writes an empty thought before a reply without one, or nothing, and the same before an earlier
            reply. Qwen3 leaves it out of earlier replies, so a demonstration that has it begins a segment each turn.
        lead: the white space that it writes between a prompt and the reply.
    """

    key: str
    opening: str
    closing: str
    shows_last: bool = False
    shows_empty: bool = False
    lead: str = ""


def form_of(write: Write, known: str, *, as_text: bool) -> ThoughtForm:
    """Try under which key a template reads thoughts. Some write them in replies with calls alone.

    Args:
        known: the template and the special tokens of the tokenizer.
        as_text: the template takes the arguments of calls as a text.
    """
    call = message_of("", [ToolCall(name="zqcalledzq", arguments={}, id="zqcall001")], as_text=as_text)
    calling = [call, result_of("x", "zqcalledzq", "zqcall001")]
    tags = next((opening, closing) for token, opening, closing in INSIDE if token in known)
    last, earlier = (_tried(write, [USER, PLAIN, *more]).partition(SAID)[0] for more in ([], [USER]))
    asked = _tried(write, [USER], add_generation_prompt=True)
    lead = last.removeprefix(asked) if last.startswith(asked) else ""
    form = ThoughtForm("", *tags, lead="" if lead.strip() else lead)
    for key in KEYS:
        for reply, *results in ([PLAIN], calling):
            if THOUGHT in _tried(write, [USER, {**reply, key: THOUGHT}, *results]):
                shows_last = THOUGHT in _tried(write, [USER, {**PLAIN, key: THOUGHT}])
                return form._replace(key=key, shows_last=shows_last, shows_empty=bool(last) and last == earlier)
    return form


def _tried(write: Write, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
    tools = [TOOL] if any("tool_calls" in message for message in messages) else []
    try:
        return write(messages, tools, add_generation_prompt=add_generation_prompt)
    except EpisodeFailure:  # it has no end
        raise
    except Exception:  # a template may refuse a message by any exception
        return ""


def as_read(message: Mapping[str, Any], form: ThoughtForm) -> dict[str, Any]:
    """The message of a reply with its thought where the template reads it.

    A thought inside the words stays there, if the template reads none apart.
    """
    read = {name: value for name, value in message.items() if name not in (*KEYS, VERBATIM)}
    reply = apart(message)
    if reply is None or VERBATIM in message:
        return read
    if form.key:
        return {**read, "content": reply.words, form.key: reply.thought}
    is_inside = not any(message.get(key) for key in KEYS)
    return read if is_inside else {**read, "content": f"{form.opening}{reply.thought}{form.closing}{reply.words}"}


def continued(reply: str, tags: tuple[str, str], *, is_open: bool, has_thought: bool) -> str:
    """The template's text of a reply after a prompt that has begun the thought in another way.

    Args:
        tags: around a thought. is_open: the prompt leaves the thought open; else it stands there, empty.
    """
    opening, closing = (tag.strip() for tag in tags)
    if has_thought and not is_open:
        return reply
    rest = reply.lstrip().removeprefix(opening).lstrip()
    if not is_open:
        return rest.removeprefix(closing).lstrip()
    return rest if has_thought or rest.startswith(closing) else tags[1] + rest


def in_place(written: str, place: str, thought: str, tags: Iterable[tuple[str, str]]) -> str:
    """The template's text with a thought in its place. An empty thought that the template writes before it goes.

    Args:
        tags: around thoughts.
    """
    before, found, after = written.partition(place)
    bare = before.rstrip()
    for opening, closing in tags:
        inside = bare.removesuffix(closing).rstrip()
        if bare.endswith(closing) and inside.endswith(opening):
            before = inside.removesuffix(opening)
            before = before.rstrip() if thought[:1].isspace() else before
    return before + thought + after if found else written
