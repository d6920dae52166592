"""Read a command although a model put something around it that means nothing: a bullet, a label, quotes, a period."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Meaning = TypeVar("Meaning")
BULLET = re.compile(r"(?:[-*•>]|\d{1,2}[.)])\s+")
LABEL = re.compile(r"(?:next |my |the )?(?:action|act|command|answer|move|output|response)\s*:\s*", re.IGNORECASE)
MARKS = "\"'`*“”‘’"


def stripped(text: str) -> str:
    """The text without a bullet or number before it, a label such as `Action:`, marks around it, and a period behind.

    >>> stripped('- Action: "Go north."'), stripped("**open door**"), stripped("2. wait"), stripped("answer 3.5")
    ('Go north', 'open door', 'wait', 'answer 3.5')
    """
    before = None
    while text != before:
        before, text = text, text.strip()
        for mark in (BULLET, LABEL):
            if found := mark.match(text):
                text = text[found.end() :]
        if len(text) > 1 and text[0] in MARKS and text[-1] in MARKS:
            text = text[1:-1]
        text = text.removesuffix(".").removesuffix("!")
    return text


def read_leniently(text: str, read: Callable[[str], Meaning | None]) -> Meaning | None:
    """What `read` makes of the text. If that is None, what it makes of the text without what is around the command.

    A text that `read` understands is never changed, so that no command gets another meaning.
    """
    meant = read(text)
    if meant is None and (inner := stripped(text)) != text:
        meant = read(inner)
    return meant
