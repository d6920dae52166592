"""What must hold of the parts of `memory_dialogue`: talks, entries and actions.

1. Truth maintenance by hand: values follow each other or add up, and an ended value is gone. A repetition changes
   nothing, unless it has another value.
2. Talks have all kinds of events and questions. Answers are true, and no more is true at once than a memory holds.
3. Operations do what they say. An impossible operation changes nothing and says why.
4. Reading a written action gives it back, in both styles.
5. Entries are read in any wording. The values of a topic may be in several entries.
"""

from __future__ import annotations

from collections import Counter

import pytest

from palaestra.envs.worlds.memory_dialogue.actions import Operation, read, write
from palaestra.envs.worlds.memory_dialogue.bank import Bank, mentioned, recall
from palaestra.envs.worlds.memory_dialogue.story import KINDS, Event, Plan, after, build
from palaestra.envs.worlds.memory_dialogue.topics import ATTRIBUTES, UNKNOWN, topics_of

TOPICS = topics_of(2, 6, False)
HOME, DOG, JOB = TOPICS[:3]  # of anna
PLAN = Plan(facts=12, people=2, attributes=4, capacity=6, questions=3, kinds=KINDS, repeats=0.1, chatter=0.1, noise=0.0,
            wording="plain", renamed=False)  # fmt: skip


def test_truth_maintenance():  # rule 1
    def told(*events):
        beliefs = {}
        for happening, topic, value in events:
            beliefs = after(beliefs, Event(happening=happening, text="", topic=topic), value)
        return beliefs

    assert told(("start", HOME, "elm"), ("change", HOME, "birch")) == {HOME: ("elm", "birch")}
    assert told(("start", DOG, "rex"), ("more", DOG, "fido")) == {DOG: ("rex", "fido")}
    assert told(("start", DOG, "rex"), ("more", DOG, "fido"), ("end", DOG, "rex")) == {DOG: ("fido",)}
    assert told(("start", DOG, "rex"), ("end", DOG, "rex")) == {}
    assert told(("start", HOME, "elm"), ("change", HOME, "birch"), ("end", HOME, "birch")) == {}
    assert told(("start", HOME, "elm"), ("again", HOME, "elm")) == {HOME: ("elm",)}
    assert told(("start", HOME, "elm"), ("change", HOME, "dover"), ("again", HOME, "birch")) == {HOME: ("elm", "birch")}
    assert told(("start", DOG, "rex"), ("again", DOG, "max")) == {DOG: ("rex", "max")}
    assert told(("start", HOME, "elm"), ("chatter", None, "")) == {HOME: ("elm",)}


def test_talks_are_true():  # rule 2
    kinds, events = Counter(), Counter()
    for seed in range(150):
        story = build(PLAN, seed)
        truth = story.heard[-1]
        assert all(len(beliefs) <= PLAN.capacity for beliefs in story.heard)
        events.update(event.happening for event in story.events)
        for question in story.questions:
            kinds[question.kind] += 1
            values = [truth.get(topic, ()) for topic in question.topics]
            if question.kind == "unknown":
                assert values == [()] and question.answer == (UNKNOWN,)
            elif question.kind == "time":
                places = [values[0].index(one) for one in (question.answer[0], question.beside)]
                assert places[0] - places[1] == (-1 if question.earlier else 1)
            else:
                now = [topic.now(truth[topic]) for topic in question.topics]
                assert question.answer == tuple(one for some in now for one in some)
                assert len(values) == (2 if question.kind == "two" else 1)
    assert set(kinds) == set(KINDS) and min(kinds.values()) > 60
    assert set(events) == {"start", "change", "more", "end", "again", "chatter"} and min(events.values()) > 40


def test_words_tell_topics_apart():
    values = [value for one in ATTRIBUTES for value in (*one.values, *one.renamed)]
    assert len(set(values)) == len(values) and not set(values) & {one.word for one in ATTRIBUTES}


def test_operations():  # rule 3
    bank = Bank(capacity=2, words=8)
    for text, entries, fault in (
        ("add anna dog rex", ((1, "anna dog rex"),), ""),
        ("add a b c d e f g h i j", ((1, "anna dog rex"), (2, "a b c d e f g h")), ""),
        ("add more", ((1, "anna dog rex"), (2, "a b c d e f g h")), "memory is full"),
        ("update 1 anna dog rex fido", ((1, "anna dog rex fido"), (2, "a b c d e f g h")), ""),
        ("update 7 x", ((1, "anna dog rex fido"), (2, "a b c d e f g h")), "no entry 7"),
        ("delete 1", ((2, "a b c d e f g h"),), ""),
        ("delete 1", ((2, "a b c d e f g h"),), "no entry 1"),
        ("noop", ((2, "a b c d e f g h"),), ""),
        ("add again", ((1, "again"), (2, "a b c d e f g h")), ""),
    ):
        bank, said = bank.apply(read(text, "words"))
        assert (bank.entries, said) == (entries, fault)


@pytest.mark.parametrize("style", ["words", "calls"])
@pytest.mark.parametrize(
    "operation",
    [
        Operation(kind="add", text="anna dog rex"),
        Operation(kind="update", ids=(2,), text="anna dog rex fido"),
        Operation(kind="delete", ids=(12,)),
        Operation(kind="noop"),
        Operation(kind="select", ids=(1, 3)),
        Operation(kind="answer", text="elm"),
    ],
)
def test_reading_undoes_writing(style, operation):  # rule 4
    assert read(write(operation, style), style) == operation


def test_calls_as_people_write_them():  # rule 4
    assert read("UPDATE(2, Anna has dogs, Rex and Fido)", "calls") == Operation(
        kind="update", ids=(2,), text="anna has dogs, rex and fido"
    )
    assert read(" noop() ", "calls") == Operation(kind="noop")
    assert read("select(3, 3, 1)", "calls") == Operation(kind="select", ids=(3, 1))
    assert read("ADD anna", "calls") is None and read("DELETE(1, 2)", "calls") is None


def test_entries_are_read_in_any_wording():  # rule 5
    assert mentioned("Anna lives in Elm; she has dogs, Rex and Fido.", TOPICS) == {HOME: ("elm",), DOG: ("rex", "fido")}
    assert mentioned("boris baker, anna pilot", TOPICS)[JOB] == ("pilot",)
    assert mentioned("elm", TOPICS) == {} and mentioned("anna home", TOPICS) == {HOME: ()}
    spread = ((1, "anna home elm"), (2, "anna dog rex"), (3, "anna dog fido rex"), (4, "anna home birch then elm"))
    assert recall(spread, TOPICS) == {HOME: ("elm", "birch", "elm"), DOG: ("rex", "fido")}


def test_what_is_near():  # rule 5
    bank = Bank(capacity=4, words=8, entries=((1, "anna job pilot"), (2, "anna home elm"), (3, "boris home elm")))
    assert bank.related("anna home", 1) == ((2, "anna home elm"),)
    assert bank.related("zzz", 2) == bank.entries[:2]
    assert bank.related("zzz", 0) == bank.entries
