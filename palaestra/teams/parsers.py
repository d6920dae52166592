"""Parsers: what a response means to a team. One that means nothing gives None."""

from __future__ import annotations

import re

from palaestra.registry import register


@register("parser", "choice")
def choice(text: str, *, options: tuple[str, ...], anywhere: bool = False) -> str | None:
    """The option that the text is, whatever its case and spaces.

    Args:
        options: what may be chosen.
        anywhere: take the first option that stands in the text as whole words; of those that begin at one place, the
            longest. False: the text is nothing else.

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
    """What stands between `<tag>` and `</tag>`, the last such place.

    >>> tagged("<think> hm </think> <verify> no </verify>", tag="verify")
    'no'
    """
    matches = re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, flags=re.DOTALL)
    return str(matches[-1]).strip() if matches else None
