"""Stories of `memory_dialogue`: the sentences of a talk, what is true after each of them, and the questions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from palaestra.data import derive
from palaestra.envs.worlds.memory_dialogue.topics import (
    CHATTER,
    MOST_VALUES,
    UNKNOWN,
    Happening,
    Topic,
    Wording,
    topics_of,
)

Kind = Literal["single", "two", "time", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Beliefs = dict[Topic, tuple[str, ...]]  # values in the order of time; topics without a value are left out
WEIGHTS = {"start": 3.0, "change": 3.0, "more": 3.0, "end": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One sentence. `value` is the value that was heard, `meant` the true one. `topic` is None for chatter."""

    happening: Happening
    text: str
    topic: Topic | None = None
    value: str = ""
    meant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, its topics, and the words that answer it, in any order."""

    kind: Kind
    text: str
    topics: tuple[Topic, ...]
    answer: tuple[str, ...]
    beside: str = ""  # for the kind "time": the value that the question names
    earlier: bool = False  # for the kind "time": whether it asks for the value before that one


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A talk and its questions. `heard[n]`: what an agent should believe after it has heard n sentences."""

    topics: tuple[Topic, ...]
    events: tuple[Event, ...]
    heard: tuple[Beliefs, ...] = field(hash=False)
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a story, with the names of the environment's options. `facts`: sentences of the whole talk."""

    facts: int
    people: int
    attributes: int
    capacity: int
    questions: int
    kinds: tuple[Kind, ...]
    repeats: float
    chatter: float
    noise: float
    wording: Wording
    renamed: bool


@lru_cache(maxsize=4096)
def build(plan: Plan, seed: int) -> Story:
    """The story of a seed. Other words and mishearings do not change what happens."""
    topics = topics_of(plan.people, plan.attributes, plan.renamed)
    draw, ear = random.Random(derive(seed, "story")), random.Random(derive(seed, "ear"))
    truth, heard, events = Beliefs(), [Beliefs()], list[Event]()
    for _ in range(plan.facts):
        event = _misheard(_event(truth, topics, plan, draw), plan, ear)
        truth = after(truth, event, event.meant)
        events.append(event)
        heard.append(after(heard[-1], event, event.value))
    ask = random.Random(derive(seed, "questions"))
    asked = tuple(_question(ask.choice(plan.kinds), truth, topics, plan.wording, ask) for _ in range(plan.questions))
    return Story(topics=topics, events=tuple(events), heard=tuple(heard), questions=asked)


def after(beliefs: Mapping[Topic, tuple[str, ...]], event: Event, value: str) -> Beliefs:
    """The beliefs after this event with this value (truth maintenance)."""
    now = dict(beliefs)
    topic = event.topic
    if topic is None:
        return now
    values = now.pop(topic, ())
    if event.happening == "end":
        values = tuple(one for one in values if one != value) if topic.attribute.many else ()
    elif topic.attribute.many:
        values = values if value in values else (*values, value)
    elif event.happening == "change":
        values = values if value in values[-1:] else (*values, value)
    else:  # a first or a repeated value; if the repetition differs, one of the two was misheard, and the latest counts
        values = (*values[:-1], value)
    if values:
        now[topic] = values[-MOST_VALUES:]
    return now


# ---- events -----------------------------------------------------------------------------------------------
def _event(truth: Beliefs, topics: tuple[Topic, ...], plan: Plan, draw: random.Random) -> Event:
    """The next sentence, with its true value. Values are drawn by position, so renamed talks have the same events."""
    choice = draw.randrange(12)
    fate = draw.random()
    if fate < plan.chatter:
        return Event(happening="chatter", text=f"{CHATTER[draw.randrange(len(CHATTER))]}")
    alive = [topic for topic in topics if topic in truth]
    if fate < plan.chatter + plan.repeats and alive:
        topic = draw.choice(alive)
        return _said("again", topic, draw.choice(topic.now(truth[topic])), plan, choice)
    topic, happening = draw.choice(_possible(truth, topics, plan, draw))
    values = truth.get(topic, ())
    if happening == "end":
        return _said("end", topic, draw.choice(topic.now(values)), plan, choice)
    return _said(happening, topic, draw.choice([one for one in topic.values if one not in values]), plan, choice)


def _possible(
    truth: Beliefs, topics: tuple[Topic, ...], plan: Plan, draw: random.Random
) -> list[tuple[Topic, Happening]]:
    """The events that may happen next, all of one kind, which is drawn by `WEIGHTS`."""
    found: dict[Happening, list[tuple[Topic, Happening]]] = {"start": [], "change": [], "more": [], "end": []}
    for topic in topics:
        values = truth.get(topic, ())
        if values:
            found["end"].append((topic, "end"))
            further: Happening = "more" if topic.attribute.many else "change"
            if len(values) < MOST_VALUES:
                found[further].append((topic, further))
        elif len(truth) < plan.capacity:
            found["start"].append((topic, "start"))
    kinds = [kind for kind, events in found.items() if events]
    return found[draw.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]]


def _said(happening: Happening, topic: Topic, value: str, plan: Plan, choice: int) -> Event:
    text = topic.say(happening, value, plan.wording, choice)
    return Event(happening=happening, text=text, topic=topic, value=value, meant=value)


def _misheard(event: Event, plan: Plan, ear: random.Random) -> Event:
    """The event or, with probability `noise`, the same event with another value heard."""
    missed, choice = ear.random() < plan.noise, ear.randrange(1 << 16)
    if event.topic is None or not missed:
        return event
    others = [one for one in event.topic.values if one != event.meant]
    heard = _said(event.happening, event.topic, others[choice % len(others)], plan, choice)
    return Event(happening=heard.happening, text=heard.text, topic=heard.topic, value=heard.value, meant=event.meant)


# ---- questions --------------------------------------------------------------------------------------------
def _question(kind: Kind, truth: Beliefs, topics: tuple[Topic, ...], wording: Wording, draw: random.Random) -> Question:
    """A question of this kind, or of another kind if the story has nothing for this one."""
    alive = [topic for topic in topics if topic in truth]
    moved = [topic for topic in alive if not topic.attribute.many and len(truth[topic]) > 1]
    gone = [topic for topic in topics if topic not in truth]
    if kind == "time" and moved:
        return _about_time(draw.choice(moved), truth, wording, draw)
    if kind == "two" and len(alive) > 1:
        two = tuple(draw.sample(alive, 2))
        text = " and ".join(topic.ask(wording) for topic in two)
        answer = tuple(value for topic in two for value in topic.now(truth[topic]))
        return Question(kind="two", text=f"{text}?", topics=two, answer=answer)
    if gone and (kind == "unknown" or not alive):
        topic = draw.choice(gone)
        return Question(kind="unknown", text=f"{topic.ask(wording)}?", topics=(topic,), answer=(UNKNOWN,))
    topic = draw.choice(alive)
    return Question(kind="single", text=f"{topic.ask(wording)}?", topics=(topic,), answer=topic.now(truth[topic]))


def _about_time(topic: Topic, truth: Beliefs, wording: Wording, draw: random.Random) -> Question:
    values = truth[topic]
    place, earlier = draw.randrange(len(values) - 1), draw.random() < 0.5
    beside, answer = (values[place + 1], values[place]) if earlier else (values[place], values[place + 1])
    relation = "before" if earlier else "after"
    subject = topic.name if wording == "short" else f"what was the {topic.attribute.word} of {topic.who}"
    return Question(
        kind="time",
        text=f"{subject} {relation} {beside}?",
        topics=(topic,),
        answer=(answer,),
        beside=beside,
        earlier=earlier,
    )
