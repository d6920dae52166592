"""Parsers, which read the answer in an agent's response for a team program. None stands for no valid answer."""

from __future__ import annotations

import re

from palaestra.registry import register
from palaestra.tools.calls import between


@register("parser", "choice")
def choice(text: str, *, options: tuple[str, ...], anywhere: bool = False) -> str | None:
    """The option that the text names. Case and extra spaces are ignored.

    Args:
        options: texts that may be chosen.
        anywhere: take the first option that occurs in the text as whole words; of options that begin at the same place,
            the longest one. False: the text must be the option and nothing else.

    >>> choice(" Yes", options=("yes", "no")), choice("well, no", options=("yes", "no"))
    ('yes', None)
    """
    words = " ".join(text.lower().split())
    if not anywhere:
        return next((option for option in options if option.lower() == words), None)
    matches = [
        (hit.start(), -len(option), option)
        for option in options
        if (hit := re.search(rf"\b{re.escape(option.lower())}\b", words))
    ]
    return min(matches)[2] if matches else None


@register("parser", "number")
def number(text: str) -> float | None:
    """The last number of the text.

    >>> number("so 3 + 4 is 7."), number("no idea")
    (7.0, None)
    """
    matches = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(matches[-1]) if matches else None


def tagged(text: str, *, tag: str) -> str | None:
    """The text between the last `<tag>` and its `</tag>`.

    >>> tagged("<think> hm </think> <verify> no </verify>", tag="verify")
    'no'
    """
    matches = between(text, f"<{tag}>", f"</{tag}>")
    return matches[-1].strip() if matches else None
