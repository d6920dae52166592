"""Words of the household: three vocabularies for the same commands, places and things, and mixtures of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from palaestra.data import derive

VocabularyName = Literal["plain", "casual", "formal", "mixed"]
NAMES: tuple[VocabularyName, ...] = get_args(VocabularyName)[:-1]  # "mixed" is drawn from these

# Each line is a meaning, and the last three columns are the vocabularies. The first column is the name in code; in
# NOUNS it is also the plain word.
VERBS = """
go      | go to {x}             | walk over to {x}      | proceed to {x}
open    | open {x}              | pull {x} open         | unseal {x}
close   | close {x}             | push {x} shut         | seal {x}
take    | take {o} from {x}     | grab {o} off {x}      | remove {o} out of {x}
put     | put {o} in {x}        | leave {o} at {x}      | deposit {o} into {x}
clean   | clean {o} with {x}    | wash {o} using {x}    | rinse {o} by {x}
heat    | heat {o} with {x}     | warm {o} using {x}    | cook {o} by {x}
cool    | cool {o} with {x}     | chill {o} using {x}   | freeze {o} by {x}
use     | use {x}               | switch on {x}         | activate {x}
examine | examine {o}           | check {o}             | study {o}
look    | look                  | glance around         | survey
carried | inventory             | empty pockets         | belongings
"""
NOUNS = """
kitchen   | cookroom   | galley
bedroom   | sleeproom  | chamber
office    | den        | bureau
fridge    | icebox     | cooler
microwave | oven       | heater
sink      | basin      | tap
counter   | worktop    | slab
cabinet   | cupboard   | locker
drawer    | tray       | compartment
table     | board      | surface
shelf     | rack       | ledge
bed       | mattress   | bunk
closet    | wardrobe   | recess
desk      | bench      | station
sofa      | couch      | settee
safe      | strongbox  | vault
lamp      | lantern    | light
mug       | beaker     | tumbler
plate     | dish       | platter
fork      | prong      | trident
towel     | rag        | cloth
apple     | fruit      | pome
egg       | ovum       | shell
carrot    | veggie     | root
book      | novel      | volume
pen       | biro       | quill
key       | opener     | latchkey
phone     | mobile     | handset
clean     | washed     | rinsed
hot       | warm       | cooked
cool      | chilled    | frozen
"""


def _columns(table: str) -> dict[str, tuple[str, ...]]:
    rows = [tuple(cell.strip() for cell in line.split("|")) for line in table.strip().splitlines()]
    return {row[0]: row[-len(NAMES) :] for row in rows}


PHRASES, WORDS = _columns(VERBS), _columns(NOUNS)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one vocabulary.

    Attributes:
        phrases: verb → the phrase of its command.
        words: plain word → the word of this vocabulary.
    """

    phrases: Mapping[str, str]
    words: Mapping[str, str]

    def command(self, verb: str, thing: str = "", place: str = "") -> str:
        """The text of a command about things and places given in words: `take mug 1 from drawer 2`."""
        return self.phrases[verb].format(o=thing, x=place)


@lru_cache(maxsize=256)
def vocabulary(name: VocabularyName, seed: int) -> Vocabulary:
    """The vocabulary of this name. "mixed" draws each phrase and word from one of the others, by the seed."""

    def chosen(meaning: str, called: tuple[str, ...]) -> str:
        return called[derive(seed, "vocabulary", meaning) % len(NAMES) if name == "mixed" else NAMES.index(name)]

    return Vocabulary(*({meaning: chosen(meaning, row) for meaning, row in rows.items()} for rows in (PHRASES, WORDS)))
