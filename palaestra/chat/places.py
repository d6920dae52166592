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
