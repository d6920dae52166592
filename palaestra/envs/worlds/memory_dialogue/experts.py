"""Experts of `memory_dialogue`: the operation that keeps a memory right, the entries for a question, and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palaestra.envs.worlds.memory_dialogue.actions import ANSWER, SELECT, Operation
from palaestra.envs.worlds.memory_dialogue.bank import Bank, Entry, mentioned, recall
from palaestra.envs.worlds.memory_dialogue.story import Event, Question, Story
from palaestra.envs.worlds.memory_dialogue.topics import THEN, UNKNOWN, Topic


def maintain(bank: Bank, story: Story, place: int) -> Operation:
    """The right operation after sentence `place`, by symbolic truth maintenance over everything heard up to it.

    A right memory has one entry for each topic that has a value. The topic of the sentence comes first. If it is right
    already, the operation repairs another topic, or replaces or deletes an entry that is of no use.
    """
    believed, said = story.heard[place + 1], recall(bank.entries, story.topics)
    wanted = {topic: topic.note(values) for topic, values in believed.items()}
    own = story.events[place].topic
    order = sorted(story.topics, key=lambda topic: topic != own)  # own first; the others keep their order
    holders: dict[Topic, list[int]] = {topic: [] for topic in order}
    useless: list[int] = []
    for number, text in bank.entries:
        about = list(mentioned(text, story.topics))
        if len(about) == 1:
            holders[about[0]].append(number)
        else:
            useless.append(number)  # about no topic, or about several, which need an entry each
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
    """The answer that these entries give. "unknown" if they say nothing about the question."""
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
    """Sensible acts of an agent that sees these entries.

    Args:
        event: the sentence that it hears. None at a question.
    """
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
