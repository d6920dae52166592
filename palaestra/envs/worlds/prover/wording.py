"""Wordings: how tactics, operators and atoms are called. The rules are the same in all of them.

Knows tokens of texts. Knows nothing of what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Symbols = Literal["signs", "words", "renamed"]
PART = re.compile(r"->|\|-|[a-z0-9]+|\s+|.")
OPERATORS = {"->": "implies", "&": "and", "|": "or", "~": "not "}
OTHER_OPERATORS = {"->": "gives", "&": "with", "|": "else", "~": "no "}
PAIRS = {
    "false": "absurd", "p": "x", "q": "y", "r": "z", "s": "w", "intro": "assume", "exact": "by", "apply": "from",
    "split": "both", "left": "first", "right": "second", "cases": "open", "exfalso": "clash", "have": "claim",
}  # fmt: skip
OTHER_WORDS = PAIRS | {other: own for own, other in PAIRS.items()}  # the usual words mean nothing there


@dataclass(frozen=True, slots=True)
class Wording:
    """How the checker's tokens are shown, and how what is written is read back."""

    shown: Mapping[str, str]

    def show(self, text: str) -> str:
        """In this wording."""
        return _replaced(text, self.shown)

    def read(self, text: str) -> str:
        """Back in the checker's own tokens."""
        return _replaced(text, {shown.strip(): own for own, shown in self.shown.items()})


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return "".join(words.get(part, part) for part in PART.findall(text))


WORDINGS: dict[Symbols, Wording] = {
    "signs": Wording({}),
    "words": Wording(OPERATORS),
    "renamed": Wording(OTHER_OPERATORS | OTHER_WORDS),
}
