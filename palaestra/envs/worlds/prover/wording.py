"""Wordings of the prover: the words for tactics, operators and atoms. The logic is the same in all of them."""

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
OTHER_WORDS = PAIRS | {other: own for own, other in PAIRS.items()}  # both ways, so that the usual words mean nothing


@dataclass(frozen=True, slots=True)
class Wording:
    """Replaces the checker's tokens by shown words, and back. `shown`: token → word."""

    shown: Mapping[str, str]

    def show(self, text: str) -> str:
        """The text in this wording."""
        return _replaced(text, self.shown)

    def read(self, text: str) -> str:
        """The text in the checker's tokens."""
        return _replaced(text, {shown.strip(): own for own, shown in self.shown.items()})


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return "".join(words.get(part, part) for part in PART.findall(text))


WORDINGS: dict[Symbols, Wording] = {
    "signs": Wording({}),
    "words": Wording(OPERATORS),
    "renamed": Wording(OTHER_OPERATORS | OTHER_WORDS),
}
