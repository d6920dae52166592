"""Experts: the operation that keeps a memory right, the entries a question is about, the answer that they give.

Knows stories and entries. Knows nothing of turns, styles or rewards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palaestra.envs.worlds.memory_dialogue.actions import ANSWER, SELECT, Operation
from palaestra.envs.worlds.memory_dialogue.bank import Bank, Entry, mentioned, recall
from palaestra.envs.worlds.memory_dialogue.story import Event, Question, Story
from palaestra.envs.worlds.memory_dialogue.topics import THEN, UNKNOWN, Topic


def maintain(bank: Bank, story: Story, place: int) -> Operation:
    """Symbolic truth maintenance: the operation for sentence `place`, by all that was heard up to it.

    One entry for each topic. The sentence's own topic comes first; where that is right already, another one that others
    left wrong is mended, and entries that help nobody give way to what is missing.
    """
    believed, said = story.heard[place + 1], recall(bank.entries, story.topics)
    wanted = {topic: topic.note(values) for topic, values in believed.items()}
    own = story.events[place].topic
    order = sorted(story.topics, key=lambda topic: topic != own)  # stable: the rest in its order
    holders: dict[Topic, list[int]] = {topic: [] for topic in order}
    useless: list[int] = []
    for number, text in bank.entries:
        about = list(mentioned(text, story.topics))
        if len(about) == 1:
            holders[about[0]].append(number)
        else:
            useless.append(number)  # of nothing, or of several things, which cannot be kept apart
    texts = dict(bank.entries)
    for topic in order:
        numbers = holders[topic]
        if topic not in wanted:
            if numbers:
                return Operation(kind="delete", ids=(numbers[0],))
            continue
        note = wanted[topic]
        spare = [number for number in numbers if texts[number] != note]
        if len(spare) == len(numbers) > 0 and (said.get(topic) != believed[topic] or len(numbers) > 1):
            return Operation(kind="update", ids=(numbers[0],), text=note)
        if not numbers and len(bank) < bank.capacity:
            return Operation(kind="add", text=note)
        if not numbers and useless:
            return Operation(kind="update", ids=(useless[0],), text=note)
        if len(numbers) > 1:
            return Operation(kind="delete", ids=((spare or numbers)[-1],))
    return Operation(kind="delete", ids=(useless[0],)) if useless else Operation(kind="noop")


def selection(entries: Iterable[Entry], question: Question, topics: tuple[Topic, ...]) -> tuple[int, ...]:
    """Numbers of the entries that say something about the question's topics."""
    return tuple(number for number, text in entries if set(mentioned(text, topics)) & set(question.topics))


def answer_from(entries: Iterable[Entry], question: Question, topics: tuple[Topic, ...]) -> str:
    """What these entries answer; "unknown" where they say nothing about it."""
    said, words = recall(entries, topics), list[str]()
    for topic in question.topics:
        values = said.get(topic, ())
        if question.kind == "time":
            place = values.index(question.beside) if question.beside in values else -1
            wanted = place - 1 if question.earlier else place + 1
            words += [values[wanted]] if place >= 0 and 0 <= wanted < len(values) else []
        else:
            words += topic.now(values)
    return " ".join(words) or UNKNOWN


def choices(entries: Sequence[Entry], event: Event | None, topics: tuple[Topic, ...]) -> list[Operation]:
    """Sensible acts for who sees these entries and hears this sentence, or a question (None)."""
    if event is None:
        values = [value for _, text in entries for found in mentioned(text, topics).values() for value in found]
        answers = [*dict.fromkeys(values), UNKNOWN]
        return [
            *(Operation(kind=SELECT, ids=(number,)) for number, _ in entries),
            *(Operation(kind=ANSWER, text=text) for text in answers),
        ]
    found = [Operation(kind="noop"), *(Operation(kind="delete", ids=(number,)) for number, _ in entries)]
    if event.topic is None:
        return found
    note = event.topic.note((event.value,))
    found.append(Operation(kind="add", text=note))
    for number, text in entries:
        joined = f"{text} {event.value}" if event.topic.attribute.many else f"{text} {THEN} {event.value}"
        found += [Operation(kind="update", ids=(number,), text=one) for one in (note, joined)]
    return found
