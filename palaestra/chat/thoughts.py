"""The tags by which models mark their thoughts, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from palaestra.tools.calls import between

KEYS = ("reasoning_content", "reasoning", "thinking")  # under which messages have a thought apart from their words
MESSAGE = "<|message|>"  # gpt-oss and Muse write thoughts, words and calls into channels, with this mark after a head
HEADS = ("<|channel|>", "to=")  # what a channel's head begins with
NEXT = "<|start|>assistant"  # begins a further channel of a reply
ENDED = re.compile(r"<\|(?:end|eom|eot|return|call)\|>")  # of a channel
PAIRS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek, GLM and most others
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<thinking>", "</thinking>"),  # no special token of a model, but often asked for
)
# Special tokens that stay special in a reply, so that the template recognizes its thoughts.
TAGS = (
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|channel>",
    "<channel|>",
)
# A thought that is never closed hides the rest.
THOUGHT = re.compile("|".join(rf"{re.escape(a)}.*?(?:{re.escape(b)}|\Z)" for a, b in PAIRS), re.DOTALL)
SPACED = re.compile(rf"\s*(?:(?:{THOUGHT.pattern})\s*)+", re.DOTALL)
INSIDE = "|".join(rf"{re.escape(a)}(.*?)(?:{re.escape(b)}|\Z)" for a, b in PAIRS[:4])
OWN = re.compile(rf"\s*(?:{INSIDE})\s*", re.DOTALL)  # a thought in a model's own tags, before its words
LEFT_OPEN = re.compile(rf"(?:{'|'.join(re.escape(opening) for opening, _ in PAIRS)})\s*\Z")


def usual(text: str) -> str:
    """The text with `<think>` and `</think>` in place of the tags of other models, as readers know them.

    >>> usual("[THINK]hm[/THINK]go")
    '<think>hm</think>go'
    """
    for opening, end in PAIRS[1:4]:
        text = text.replace(opening, PAIRS[0][0]).replace(end, PAIRS[0][1])
    return text


class Apart(NamedTuple):
    """A reply with its thought apart from its words."""

    thought: str
    words: str


def apart(message: Mapping[str, Any]) -> Apart | None:
    """The thought and the words of a reply's message; None, without a thought.

    The thought stands under one of `KEYS`, or in a model's own tags before the words. One that is never closed is the
    whole reply.

    >>> apart({"content": "<think>\\nI add.\\n</think>\\n\\n4"})
    Apart(thought='I add.', words='4')
    """
    content = message.get("content") or ""
    thought = next((message[key] for key in KEYS if message.get(key)), None)
    if thought is not None:
        return Apart(str(thought), content)
    inside = OWN.match(content) if isinstance(content, str) else None
    if inside is None:
        return None
    return Apart(next(text for text in inside.groups() if text is not None).strip(), content[inside.end() :])


def reply_apart(text: str) -> dict[str, Any]:
    """The message of a reply, whose thought stands apart."""
    parts = apart({"content": text})
    if parts is None:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": parts.words, KEYS[0]: parts.thought}


def thoughts_in(message: Mapping[str, Any]) -> list[str]:
    """The texts of the thoughts of a reply's message."""
    inside = [one.strip() for one in between(usual(str(message.get("content") or "")), *PAIRS[0])]
    return [one for one in (*inside, *(str(message.get(key) or "").strip() for key in KEYS)) if one]


def without_thoughts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the thoughts of a reply."""
    if message["role"] != "assistant":
        return dict(message)
    kept = {name: value for name, value in message.items() if name not in KEYS}
    first, *others = THOUGHT.split(str(message.get("content") or ""))
    if not others:
        return kept | {"content": first}
    return kept | {"content": "".join([first.rstrip(), *(one.strip() for one in others[:-1]), others[-1].lstrip()])}


def reply_of(said: str, *, opened: str = "") -> dict[str, Any]:
    """The message of a reply, for the template to write again.

    Args:
        opened: the beginning of a thought in the prompt, which the reply continues.
    """
    if not in_channels(said):
        return {"role": "assistant", "content": opened + said}
    texts = {kind: "\n".join(text for one, _, text in channels(said) if one == kind) for kind in ("thought", "words")}
    thought = {KEYS[0]: texts["thought"]} if texts["thought"] else {}
    return {"role": "assistant", "content": texts["words"], **thought}


def in_channels(said: str) -> bool:
    """Whether a reply consists of channels: it begins with the head of one."""
    head, mark, _ = said.partition(MESSAGE)
    return bool(mark) and head.lstrip().startswith(HEADS)


def channels(said: str) -> Iterator[tuple[str, str, str]]:
    """The kind of each channel of a reply ("thought", "words" or "call"), the channel, and the text in it."""
    for channel in said.split(NEXT):
        head, mark, body = channel.partition(MESSAGE)
        if mark:
            is_thought = "to=self" in head or ("analysis" in head and "to=" not in head)
            kind = "thought" if is_thought else "call" if "to=" in head and "to=user" not in head else "words"
            yield kind, channel, ENDED.split(body, maxsplit=1)[0]


def split_channels(said: str) -> tuple[str, str]:
    """The channels of a reply that are no thoughts; and its words, after its thought in `<think>`."""
    message = reply_of(said)
    thought, words = message.get(KEYS[0]), str(message["content"]).strip()
    spoken = NEXT.join(channel for kind, channel, _ in channels(said) if kind != "thought")
    return spoken, f"<think>{thought}</think>{words}" if thought else words


def without_channels(said: str) -> str:
    """The words of a reply, after its thought in `<think>`; a reply that calls a tool stays as it is."""
    return said if any(kind == "call" for kind, _, _ in channels(said)) else split_channels(said)[1]
