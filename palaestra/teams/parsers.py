"""Parsers: what a response means to a team. One that means nothing gives None. Knows texts alone."""

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
    found = [
        (hit.start(), -len(option), option)
        for option in options
        if (hit := re.search(rf"\b{re.escape(option.lower())}\b", words))
    ]
    return min(found)[2] if found else None


@register("parser", "number")
def number(text: str) -> float | None:
    """The last number of the text.

    >>> number("so 3 + 4 is 7."), number("no idea")
    (7.0, None)
    """
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else None


def tagged(text: str, *, tag: str) -> str | None:
    """What stands between `<tag>` and `</tag>`, the last such place.

    >>> tagged("<think> hm </think> <verify> no </verify>", tag="verify")
    'no'
    """
    found = re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, flags=re.DOTALL)
    return str(found[-1]).strip() if found else None
