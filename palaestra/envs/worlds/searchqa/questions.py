"""Questions of `searchqa`: along the facts of a graph, or about hidden spans of a passage."""

from __future__ import annotations

import random
from dataclasses import dataclass

from palaestra.data import derive
from palaestra.envs.worlds.searchqa.graph import Fact, Graph
from palaestra.envs.worlds.searchqa.passages import MASK, Corpus
from palaestra.errors import InvalidData

TRIES = 500
REQUEST = "fill in:"  # the beginning of a question about hidden spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and its right answers.

    Attributes:
        start: name of the entity that it begins with. short: text for small models. long: a full sentence.
        gold: the facts that it needs, in the order in which they are found.
        answers: for each thing that it asks for, the texts that are right.
        relations: words of the relations that it names or hides.
    """

    start: str
    short: str
    long: str
    gold: tuple[Fact, ...]
    answers: tuple[tuple[str, ...], ...]
    relations: tuple[str, ...]


def count_of(counts: tuple[int, int], seed: int) -> int:
    """Number of hops or hidden spans that the question of this seed should have."""
    return random.Random(derive(seed, "count")).randint(*counts)


def ask(graph: Graph, hops: int, seed: int, *, half: int | None = None) -> Question:
    """A question with this number of hops that visits no entity twice.

    Args:
        half: 0 or 1, for a question from this half of all questions about the graph. None: from all.

    Raises: InvalidData, if none is found.
    """
    draw = random.Random(derive(seed, "question"))
    for attempt in range(TRIES):
        wanted = _wanted(hops, attempt, draw)
        way = _walk(graph, wanted, draw)
        if len(way) == wanted and half in (None, _half(graph, way)):
            return _along(graph, way)
    raise _nothing_to_ask(hops)


def fill_in(corpus: Corpus, most: int, seed: int, *, half: int | None = None) -> Question:
    """A question about `most` hidden spans of a passage, or about all that it has if these are fewer. A value that
    occurs twice in the passage is never hidden. Raises: InvalidData, if no question is found."""
    graph, draw = corpus.graph, random.Random(derive(seed, "question"))
    for attempt in range(TRIES):
        wanted = _wanted(most, attempt, draw)
        facts = graph.of(draw.randrange(len(graph)))
        values = [graph.facts[fact] for fact in facts]
        salient = [fact for fact, value in zip(facts, values, strict=True) if values.count(value) == 1]
        spans = sorted(draw.sample(salient, min(wanted, len(salient))))
        if spans and half in (None, _half(graph, spans)):
            return _hiding(corpus, spans)
    raise _nothing_to_ask(most)


def _hiding(corpus: Corpus, spans: list[Fact]) -> Question:
    graph = corpus.graph
    passage = corpus.about(spans[0][0])
    shown = " ".join(one.hidden if one.fact in spans else one.text for one in passage.sentences)
    gold = tuple(one.fact for one in passage.sentences if one.fact is not None and one.fact in spans)
    text = f"{REQUEST} {passage.title}: {shown}"
    return Question(
        start=graph.names[spans[0][0]],
        short=text,
        long=f"{text} give what is hidden behind each {MASK}, in order, with ; between.",
        gold=gold,
        answers=tuple(_accepted(graph, fact) for fact in gold),
        relations=tuple(graph.words[relation] for _, relation in gold),
    )


def _wanted(count: int, attempt: int, draw: random.Random) -> int:
    """The number of hops or spans to look for. After half of the tries, it may be fewer than asked for."""
    return count if 2 * attempt < TRIES else draw.randint(1, count)


def _nothing_to_ask(count: int) -> InvalidData:
    return InvalidData(
        where="environment searchqa",
        what=f"the graph is too small: no question was found that no other split asks (hops or spans: {count}).",
        remedy="Raise `entities` or `relations`.",
    )


def _walk(graph: Graph, hops: int, draw: random.Random) -> list[Fact]:
    entity = draw.randrange(len(graph))
    way, passed = list[Fact](), {entity}
    while len(way) < hops:
        steps = [fact for fact in graph.of(entity) if graph.facts[fact] not in passed]
        if not steps:
            break
        way.append(draw.choice(steps))
        entity = graph.facts[way[-1]]
        passed.add(entity)
    return way


def _along(graph: Graph, way: list[Fact]) -> Question:
    start, words = graph.names[way[0][0]], [graph.words[relation] for _, relation in way]
    return Question(
        start=start,
        short=f"question: {' '.join([start, *words])}.",
        long=f"question: what is {' of '.join(f'the {word}' for word in reversed(words))} of {start}?",
        gold=tuple(way),
        answers=(_accepted(graph, way[-1]),),
        relations=tuple(dict.fromkeys(words)),
    )


def _accepted(graph: Graph, fact: Fact) -> tuple[str, ...]:
    answer = graph.facts[fact]
    return (graph.names[answer], *graph.aliases[answer])


def _half(graph: Graph, facts: list[Fact]) -> int:
    """The half of all questions about a graph that this one belongs to. It does not depend on names."""
    return derive(graph.seed, "half", *facts) % 2
