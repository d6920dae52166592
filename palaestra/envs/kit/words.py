"""Rename the words of a world: in the texts that agents read, and back in the texts that they write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

STRANGE = "no_"  # put before the plain form of a renamed word, so that nobody understands it


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """New words for plain ones. The plain form of a renamed word means nothing.

    A number at the end of a word stays, as in hotel2 → tent2. A word that is not renamed stands for itself.

    Attributes:
        other: plain word → its new word.
        meant: new word → its plain word; the plain form of a renamed word → a word that means nothing.

    >>> words = Vocabulary({"shirt": "blouse"})
    >>> words.say("red", "shirt"), words.hear("blouse"), words.hear("red"), words.hear("shirt")
    ('red blouse', 'shirt', 'red', 'no_shirt')
    """

    other: Mapping[str, str] = field(default_factory=dict)
    meant: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        strange = {word: f"{STRANGE}{word}" for word in self.other}
        object.__setattr__(self, "meant", strange | {word: plain for plain, word in self.other.items()})

    def say(self, *words: str) -> str:
        """These words after renaming, with spaces between them."""
        return " ".join(_replaced(word, self.other) for word in words)

    def hear(self, word: str) -> str:
        """The plain word that a word stands for."""
        return _replaced(word, self.meant)


def _replaced(word: str, words: Mapping[str, str]) -> str:
    stem = word.rstrip("0123456789")
    return words.get(stem, stem) + word[len(stem) :]


def drawn_names(things: Sequence[str], words: Sequence[str], seed: int) -> dict[str, str]:
    """Thing → its name. The names are drawn from `words` by the seed, and no two things have the same one."""
    order = np.random.default_rng(seed).permutation(len(words))
    return {thing: words[int(place)] for thing, place in zip(things, order, strict=False)}
