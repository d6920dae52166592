"""Other words for the same things: how a world is renamed, on the way out to the agent and on the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

STRANGE = "no_"  # before a plain word that has another name here


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Words in the place of plain ones. A plain word that has another name means nothing here.

    A number at the end of a word stays, as in hotel2 → tent2. A word without another one stands for itself.

    Attributes:
        other: plain word → the word in its place. meant: the way back.

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
        """These words as they are said here, with spaces between them."""
        return " ".join(_replaced(word, self.other) for word in words)

    def hear(self, word: str) -> str:
        """What a word stands for."""
        return _replaced(word, self.meant)


def _replaced(word: str, words: Mapping[str, str]) -> str:
    stem = word.rstrip("0123456789")
    return words.get(stem, stem) + word[len(stem) :]


def drawn_names(things: Sequence[str], words: Sequence[str], seed: int) -> dict[str, str]:
    """Thing → how it is called: one of the words for each, none for two, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(words))
    return {thing: words[int(place)] for thing, place in zip(things, order, strict=False)}
