"""The memory of `memory_dialogue`: numbered entries, operations on them, and what they say about topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from palaestra.envs.kit.answers import answer_words
from palaestra.envs.worlds.memory_dialogue.actions import Operation
from palaestra.envs.worlds.memory_dialogue.topics import Topic

Entry = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """Numbered entries: at most `capacity`, each of at most `words` words."""

    capacity: int
    words: int
    entries: tuple[Entry, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def apply(self, operation: Operation) -> tuple[Bank, str]:
        """The bank after an operation, and the error if it could not be done, else ""."""
        kept = dict(self.entries)
        text = " ".join(operation.text.split()[: self.words])
        if operation.kind == "add":
            if len(kept) >= self.capacity:
                return self, "memory is full"
            kept[next(number for number in range(1, self.capacity + 1) if number not in kept)] = text
        elif operation.kind in ("update", "delete"):
            number = operation.ids[0]
            if number not in kept:
                return self, f"no entry {number}"
            if operation.kind == "update":
                kept[number] = text
            else:
                del kept[number]
        return Bank(capacity=self.capacity, words=self.words, entries=tuple(sorted(kept.items()))), ""

    def related(self, text: str, k: int) -> tuple[Entry, ...]:
        """The `k` entries that have most words of a text, in the order of their numbers. Among equals, lower numbers
        are taken first. 0: all entries."""
        if not k or len(self.entries) <= k:
            return self.entries
        wanted = set(answer_words(text))
        best = sorted(self.entries, key=lambda entry: (-len(wanted & set(answer_words(entry[1]))), entry[0]))
        return tuple(sorted(best[:k]))


@lru_cache(maxsize=1 << 15)
def mentioned(text: str, topics: tuple[Topic, ...]) -> Mapping[Topic, tuple[str, ...]]:
    """What a text says about topics: topic → values, in order. A value belongs to the person who was named last.

    A value belongs to one attribute only, so the wording does not matter. A topic that is named without a value has an
    empty tuple.
    """
    people, by_word = _lexicon(topics)
    found: dict[Topic, list[str]] = {}
    who = ""
    for word in answer_words(text):
        who = word if word in people else who
        topic = by_word.get((who, word))
        if topic is not None:
            values = found.setdefault(topic, [])
            if word != topic.attribute.word and word not in values[-1:]:
                values.append(word)
    return {topic: tuple(values) for topic, values in found.items()}


def recall(entries: Iterable[Entry], topics: tuple[Topic, ...]) -> dict[Topic, tuple[str, ...]]:
    """What all entries say about topics: topic → values, in order. A value directly after itself is listed once. Where
    values add up, no value is listed twice."""
    told: dict[Topic, list[str]] = {}
    for _, text in entries:
        for topic, values in mentioned(text, topics).items():
            known = told.setdefault(topic, [])
            for value in values:
                if value not in (known if topic.attribute.many else known[-1:]):
                    known.append(value)
    return {topic: tuple(values) for topic, values in told.items() if values}


@lru_cache(maxsize=256)
def _lexicon(topics: tuple[Topic, ...]) -> tuple[set[str], dict[tuple[str, str], Topic]]:
    """The people, and the topic of each pair of a person and a word."""
    by_word = {(topic.who, word): topic for topic in topics for word in (topic.attribute.word, *topic.values)}
    return {topic.who for topic in topics}, by_word
