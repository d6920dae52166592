"""The names of the towns, and two vocabularies for towns, tools and things."""

from __future__ import annotations

from typing import Literal

from palaestra.envs.kit.words import Vocabulary

VocabularyName = Literal["plain", "renamed"]
# In each vocabulary all first letters differ, because the codes of offers use them.
TOWNS = ("athens", "bern", "cork", "dover", "essen", "faro", "genoa", "lund", "milan", "oslo", "riga", "turin")
VOCABULARIES: dict[VocabularyName, Vocabulary] = {
    "plain": Vocabulary(),
    "renamed": Vocabulary(
        {
            "athens": "avo", "bern": "bima", "cork": "cude", "dover": "dalo", "essen": "eko", "faro": "fenu",
            "genoa": "gira", "lund": "lope", "milan": "muta", "oslo": "ola", "riga": "resi", "turin": "tavi",
            "trains": "ferries", "flights": "rockets", "hotels": "tents", "pois": "shows", "route": "walk",
            "book": "take", "visit": "see", "undo": "drop", "done": "finish", "plan": "submit",
            "train": "ferry", "flight": "rocket", "hotel": "tent", "station": "pier", "airport": "pad",
            "museum": "opera", "castle": "circus", "market": "film", "park": "race", "tower": "ballet", "zoo": "comedy",
        },
    ),
}  # fmt: skip


def town_names(words: Vocabulary) -> tuple[str, ...]:
    """The names of all towns in this vocabulary."""
    return tuple(words.say(town) for town in TOWNS)
