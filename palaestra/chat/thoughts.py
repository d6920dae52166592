"""The tags by which models mark their thoughts, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from palaestra.tools.calls import between

CHANNEL = "<|channel|>"  # gpt-oss writes thoughts and answers into channels
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
SPACED = re.compile(rf"\s*(?:{THOUGHT.pattern})\s*", re.DOTALL)
LEFT_OPEN = re.compile(rf"(?:{'|'.join(re.escape(opening) for opening, _ in PAIRS)})\s*\Z")


def usual(text: str) -> str:
    """The text with `<think>` and `</think>` in place of the tags of other models, as readers know them.

    >>> usual("[THINK]hm[/THINK]go")
    '<think>hm</think>go'
    """
    for opening, end in PAIRS[1:4]:
        text = text.replace(opening, PAIRS[0][0]).replace(end, PAIRS[0][1])
    return text


def thoughts_in(message: Mapping[str, Any]) -> list[str]:
    """The texts of the thoughts of a reply's message."""
    content, thinking = str(message.get("content") or ""), str(message.get("thinking") or "").strip()
    inside = [one.strip() for one in between(usual(content), *PAIRS[0])]
    return [one for one in (*inside, thinking) if one]


def without_thoughts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the thoughts of a reply."""
    if message["role"] != "assistant":
        return dict(message)
    kept = {name: value for name, value in message.items() if name != "thinking"}
    first, *others = THOUGHT.split(str(message.get("content") or ""))
    if not others:
        return kept | {"content": first}
    return kept | {"content": "".join([first.rstrip(), *(one.strip() for one in others[:-1]), others[-1].lstrip()])}


def reply_of(said: str, *, opened: str = "") -> dict[str, Any]:
    """The message of a reply, for the template to write again.

    Args:
        opened: the beginning of a thought in the prompt, which the reply continues.
    """
    if CHANNEL in said:  # gpt-oss
        thoughts = re.findall(r"<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|\Z)", said, re.DOTALL)
        final = said.rpartition("<|channel|>final<|message|>")
        return {"role": "assistant", "content": final[2] if final[1] else "", "thinking": "\n".join(thoughts)}
    return {"role": "assistant", "content": opened + said}


def without_channels(said: str) -> str:
    """A reply of gpt-oss with its analysis as a thought; a call of a tool stays as it is."""
    if "to=functions." in said:
        return said
    message = reply_of(said)
    content = re.sub(r"<\|[a-z]+\|>", "", message["content"]).strip()
    return f"<think>{message['thinking']}</think>{content}" if message["thinking"] else content
