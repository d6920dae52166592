"""Vocabularies: what towns, tools and things are called. The same world, in other words.

Knows words. Knows nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VocabularyName = Literal["plain", "renamed"]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Names of towns, no two with the same first letter, and words in place of the plain ones."""

    towns: tuple[str, ...]
    other: Mapping[str, str] = field(default_factory=dict)

    def say(self, word: str) -> str:
        """The word for a thing; of a numbered one such as `hotel2`, with its number."""
        stem = word.rstrip("0123456789")
        return self.other.get(stem, stem) + word[len(stem) :]

    def mean(self, word: str) -> str:
        """What a word stands for: `say` backward. A plain word that has another name stands for nothing."""
        stem = word.rstrip("0123456789")
        plain = next((plain for plain, said in self.other.items() if said == stem), None)
        return (plain or ("" if stem in self.other else stem)) + word[len(stem) :]


VOCABULARIES: dict[VocabularyName, Vocabulary] = {
    "plain": Vocabulary(
        ("athens", "bern", "cork", "dover", "essen", "faro", "genoa", "lund", "milan", "oslo", "riga", "turin")
    ),
    "renamed": Vocabulary(
        ("avo", "bima", "cude", "dalo", "eko", "fenu", "gira", "lope", "muta", "ola", "resi", "tavi"),
        {
            "trains": "ferries", "flights": "rockets", "hotels": "tents", "pois": "shows", "route": "walk",
            "book": "take", "visit": "see", "undo": "drop", "done": "finish", "plan": "submit",
            "train": "ferry", "flight": "rocket", "hotel": "tent", "station": "pier", "airport": "pad",
            "museum": "opera", "castle": "circus", "market": "film", "park": "race", "tower": "ballet", "zoo": "comedy",
        },
    ),
}  # fmt: skip
