"""Where images stand in the content of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLACE = "\ufffc"  # OBJECT REPLACEMENT CHARACTER


def placed(message: Mapping[str, Any]) -> str:
    """The content, in which each of the message's `pictures` has its place.

    Without places, or with another number of them, the pictures stand first.
    """
    content, count = str(message["content"]), len(message.get("pictures", ()))
    return content if content.count(PLACE) == count else PLACE * count + content.replace(PLACE, "")


def in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is a list of parts."""
    parts: list[dict[str, Any]] = []
    for place, text in enumerate(placed(message).split(PLACE)):
        parts += [{"type": "image"}] if place else []
        parts += [{"type": "text", "text": text}] if text else []
    return {**message, "content": parts or [{"type": "text", "text": ""}]}
