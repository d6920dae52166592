"""Topics of `memory_dialogue`: the attributes of people, their values, and the sentences about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Happening = Literal["start", "change", "more", "end", "again", "chatter"]
Wording = Literal["short", "plain", "varied"]
THEN = "then"  # between values that followed each other
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One thing that can be true of a person.

    Attributes:
        word: its name in notes and short sentences.
        many: whether values add up (dogs) or the next one takes the place of the last (home).
        values: its possible values. renamed: those under the option `renamed`. No other attribute has them.
        start: sentences for a first value. change: for a new or a further value. end: for a value that is gone.
        ask: the question about it.
    """

    word: str
    many: bool
    values: tuple[str, ...]
    renamed: tuple[str, ...]
    start: tuple[str, ...]
    change: tuple[str, ...]
    end: tuple[str, ...]
    ask: str


ATTRIBUTES = (
    Attribute(
        word="home",
        many=False,
        values=("elm", "birch", "cedar", "dover", "haven", "lowell", "norton", "oakley"),
        renamed=("arno", "bari", "cusco", "dakar", "fez", "hilo", "minsk", "osaka"),
        start=("{who} lives in {it}", "{who} has a flat in {it}", "the home of {who} is in {it}"),
        change=("{who} moved to {it}", "{who} lives in {it} now", "{who} has a new home in {it}"),
        end=("{who} left {it} and has no home now", "{who} gave up the flat in {it}", "{who} is gone from {it}"),
        ask="where does {who} live",
    ),
    Attribute(
        word="dog",
        many=True,
        values=("rex", "fido", "bella", "luna", "max", "daisy", "rocky", "coco"),
        renamed=("ajax", "blitz", "cleo", "dax", "enzo", "gus", "kobi", "nero"),
        start=("{who} has a dog called {it}", "{who} got a dog, {it}", "{it} is the dog of {who}"),
        change=("{who} adopted another dog, {it}", "{who} also has a dog called {it}", "{it} is one more dog of {who}"),
        end=("{who} gave the dog {it} away", "the dog {it} of {who} died", "{who} no longer has {it}"),
        ask="what are the dogs of {who} called",
    ),
    Attribute(
        word="job",
        many=False,
        values=("baker", "nurse", "pilot", "tailor", "judge", "farmer", "clerk", "painter"),
        renamed=("cook", "driver", "guard", "miner", "porter", "sailor", "smith", "weaver"),
        start=("{who} works as {it}", "{who} is a {it}", "{who} earns money as {it}"),
        change=("{who} works as {it} now", "{who} became a {it}", "the new job of {who} is {it}"),
        end=("{who} stopped working as {it}", "{who} lost the job as {it}", "{who} is no {it} any more"),
        ask="what is the job of {who}",
    ),
    Attribute(
        word="language",
        many=True,
        values=("dutch", "greek", "hindi", "polish", "latin", "danish", "korean", "thai"),
        renamed=("czech", "finnish", "hausa", "malay", "pashto", "somali", "tamil", "zulu"),
        start=("{who} speaks {it}", "{who} knows {it}", "{it} is spoken by {who}"),
        change=("{who} learned {it} too", "{who} also speaks {it} now", "{it} is one more language of {who}"),
        end=("{who} forgot all {it}", "{who} no longer speaks {it}", "the {it} of {who} is gone"),
        ask="which languages does {who} speak",
    ),
    Attribute(
        word="drink",
        many=False,
        values=("tea", "coffee", "milk", "cocoa", "water", "cider", "juice", "wine"),
        renamed=("ale", "broth", "chai", "kefir", "lassi", "mead", "punch", "soda"),
        start=("{who} likes {it} best", "{who} always drinks {it}", "the drink of {who} is {it}"),
        change=("{who} likes {it} best now", "{who} drinks {it} these days", "the new drink of {who} is {it}"),
        end=("{who} does not drink {it} any more", "{who} gave up {it}", "{who} is tired of {it}"),
        ask="what does {who} like to drink",
    ),
    Attribute(
        word="sport",
        many=True,
        values=("judo", "rowing", "tennis", "chess", "golf", "hockey", "running", "skating"),
        renamed=("boxing", "cricket", "diving", "fencing", "karate", "polo", "rugby", "surfing"),
        start=("{who} does {it}", "{who} is fond of {it}", "{it} is a sport of {who}"),
        change=("{who} took up {it} as well", "{who} also does {it} now", "{it} is one more sport of {who}"),
        end=("{who} stopped {it}", "{who} does no {it} any more", "{who} dropped {it}"),
        ask="which sports does {who} do",
    ),
)
PEOPLE = ("anna", "boris", "clara", "david", "elsa", "felix")
RENAMED_PEOPLE = ("aziz", "chen", "gita", "kofi", "mei", "omar")
CHATTER = (
    *("it rained all day", "the train was late again", "that was a good film", "the garden looks nice"),
    *("we should meet soon", "the news were strange", "this week went fast", "the soup was too hot"),
)
MOST_VALUES = 3  # of one topic, one after the other or at the same time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # each exists once; comparing by identity is fast
class Topic:
    """An attribute of a person."""

    who: str
    attribute: Attribute
    renamed: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """Its possible values."""
        return self.attribute.renamed if self.renamed else self.attribute.values

    @property
    def name(self) -> str:
        """Its name, such as `anna home`."""
        return f"{self.who} {self.attribute.word}"

    def note(self, values: Sequence[str]) -> str:
        """The entry that holds these values: `anna home birch then elm`, `anna dog rex fido`."""
        return f"{self.name} {(' ' if self.attribute.many else f' {THEN} ').join(values)}"

    def now(self, values: Sequence[str]) -> tuple[str, ...]:
        """The values that are true now, given all values in the order of time."""
        return tuple(values) if self.attribute.many else tuple(values[-1:])

    def say(self, happening: Happening, value: str, wording: Wording, choice: int) -> str:
        """A sentence that tells what happened. `choice` picks it if the wording is "varied"."""
        if wording == "short":
            middle = {"change": " now", "more": " also", "end": " no more"}.get(happening, "")
            return f"{self.name}{middle} {value}"
        of_start = happening in ("start", "again")
        sentences = (
            self.attribute.start if of_start else self.attribute.end if happening == "end" else self.attribute.change
        )
        return sentences[choice % len(sentences) if wording == "varied" else 0].format(who=self.who, it=value)

    def ask(self, wording: Wording) -> str:
        """Its question: `anna home`, or a full sentence."""
        return self.name if wording == "short" else self.attribute.ask.format(who=self.who)


@lru_cache
def _topic(who: str, attribute: int, renamed: bool) -> Topic:
    return Topic(who=who, attribute=ATTRIBUTES[attribute], renamed=renamed)


@lru_cache
def topics_of(people: int, attributes: int, renamed: bool) -> tuple[Topic, ...]:
    """All topics about the first `people` people and their first `attributes` attributes."""
    names = (RENAMED_PEOPLE if renamed else PEOPLE)[:people]
    return tuple(_topic(who, number, renamed) for who in names for number in range(attributes))
