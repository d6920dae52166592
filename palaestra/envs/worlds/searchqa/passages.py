"""Passages of `searchqa`: one about each entity of a graph, and some about other things of the same name."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from palaestra.data import derive
from palaestra.envs.kit.answers import answer_words
from palaestra.envs.worlds.searchqa.graph import RELATIONS, Entity, Fact, Graph, build_graph
from palaestra.tools.search import Index

MASK = "[mask]"
WORDINGS = 3
THINGS = ("ship", "inn", "song", "horse")  # kinds of namesakes
Read = tuple[str, int]  # the id of a passage and the number of a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence about one fact of the graph, or none. `hidden`: with a mask for the entity that the fact leads to."""

    text: str
    fact: Fact | None = None
    hidden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage, as the search engine finds it. `about`: its entity, None for a namesake."""

    id: str
    title: str
    about: Entity | None
    sentences: tuple[Sentence, ...]

    def show(self, numbers: tuple[int, ...]) -> str:
        """Its id, its title and these sentences: `d3 anna: person. friend: boris.`"""
        return f"{self.id} {self.title}: {' '.join(self.sentences[n].text for n in numbers)}"

    def excerpt(self, query: str, words: int) -> tuple[int, ...]:
        """Numbers of sentences with about `words` words in all, from the first that has most words of the query on.
        0: all sentences."""
        if not words:
            return tuple(range(len(self.sentences)))
        wanted = set(answer_words(query))
        common = [len(wanted & set(answer_words(sentence.text))) for sentence in self.sentences]
        first = common.index(max(common))
        chosen, left = [first], words - len(self.sentences[first].text.split())
        for number in range(first + 1, len(self.sentences)):
            left -= len(self.sentences[number].text.split())
            if left < 0:
                break
            chosen.append(number)
        return tuple(chosen)


@dataclass(slots=True, kw_only=True)
class Corpus:
    """All passages about a graph, and the engine that searches them. It keeps the results of queries."""

    graph: Graph
    passages: dict[str, Passage]
    _own: dict[Entity, str] = field(default_factory=dict)
    _index: Index | None = None
    _found: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._own = {p.about: p.id for p in self.passages.values() if p.about is not None}

    def about(self, entity: Entity) -> Passage:
        """The passage of an entity."""
        return self.passages[self._own[entity]]

    def search(self, query: str, k: int) -> tuple[str, ...]:
        """Ids of the best `k` passages that share a word with the query."""
        if (query, k) not in self._found:
            index = self._index or self.prepare()
            if len(self._found) > 4096:
                self._found.clear()
            self._found[query, k] = tuple(hit.id for hit in index.search(query, k) if hit.score > 0)
        return self._found[query, k]

    def prepare(self) -> Index:
        """Build the search engine if there is none yet. A title counts twice, so that a name finds its passage."""
        if self._index is None:
            texts = {p.id: " ".join([p.title, p.title, *(s.text for s in p.sentences)]) for p in self.passages.values()}
            self._index = Index(texts)
        return self._index

    def facts(self, read: frozenset[Read]) -> set[Fact]:
        """The facts of the graph that these sentences tell."""
        told = (self.passages[doc].sentences[number].fact for doc, number in read)
        return {fact for fact in told if fact is not None}

    def knows(self, fact: Fact | None, share: float) -> bool:
        """Whether a fact belongs to a fixed share of all facts. False for None."""
        return fact is not None and derive(self.graph.seed, "known", *fact) / 2**63 < share


@lru_cache(maxsize=256)
def build_corpus(entities: int, relations: int, distractors: float, wordings: int, renamed: bool, seed: int) -> Corpus:
    """The corpus of a graph. The wording and the number of a passage do not depend on names."""
    graph = build_graph(entities, relations, renamed, seed)
    draw = random.Random(derive(seed, "passages"))
    made: list[tuple[str, Entity | None, tuple[Sentence, ...]]] = []
    told_by_year: dict[Entity, list[Fact]] = defaultdict(list)
    for fact, target in graph.facts.items():
        if graph.kinds[target] == "year":
            told_by_year[target].append(fact)
    for entity in range(len(graph)):
        wording = draw.randrange(wordings)
        facts = graph.of(entity) + told_by_year[entity]
        made.append((graph.names[entity], entity, _sentences(graph, entity, facts, wording)))
    namable = [entity for entity in range(len(graph)) if graph.of(entity)]
    for entity in draw.sample(namable, round(distractors * len(namable))):
        made.append(_namesake(graph, entity, draw.randrange(wordings), draw))
    numbers = draw.sample(range(1, len(made) + 1), len(made))
    passages = [
        Passage(id=f"d{number}", title=title, about=about, sentences=sentences)
        for number, (title, about, sentences) in zip(numbers, made, strict=True)
    ]
    return Corpus(graph=graph, passages={one.id: one for one in sorted(passages, key=lambda one: int(one.id[1:]))})


# ---- wording ----------------------------------------------------------------------------------------------
def _sentences(graph: Graph, entity: Entity, facts: list[Fact], wording: int) -> tuple[Sentence, ...]:
    kind, name, alias = graph.kinds[entity], graph.names[entity], graph.aliases[entity][0]
    head = (f"{kind}.", f"{name} is a {kind}.", f"a {kind}, also known as {alias}.")[wording]
    return (Sentence(text=head), *(_sentence(graph, fact, wording, entity) for fact in facts))


def _sentence(graph: Graph, fact: Fact, wording: int, entity: Entity) -> Sentence:
    """A fact, told in the passage of `entity`, which is one of its two ends. The last wording uses the alias of the
    other end."""
    one, other = fact[0], graph.facts[fact]
    names = [graph.names[one], graph.names[other]]
    if wording == 2:
        names = [n if e == entity else graph.aliases[e][0] for n, e in zip(names, (one, other), strict=True)]
    word, verb = graph.words[fact[1]], RELATIONS[fact[1]].verb

    def say(first: str, second: str) -> str:
        beside = second if one == entity else first
        return (
            f"{word}: {beside}.",
            f"the {word} of {first} is {second}.",
            f"{verb.format(one=first, other=second)}.",
        )[wording]

    return Sentence(text=say(*names), fact=fact, hidden=say(names[0], MASK))


def _namesake(
    graph: Graph, entity: Entity, wording: int, draw: random.Random
) -> tuple[str, None, tuple[Sentence, ...]]:
    """A passage about another thing of an entity's name, with the same relations and random values."""
    thing = draw.choice(THINGS)
    title = f"{thing} {graph.names[entity]}"
    sentences = [Sentence(text=(f"{thing}.", f"{title} is a {thing}.", f"a {thing}.")[wording])]
    for _, relation in graph.of(entity):
        values = [o for o, kind in enumerate(graph.kinds) if kind == RELATIONS[relation].target and o != entity]
        value = graph.names[draw.choice(values)]
        word, verb = graph.words[relation], RELATIONS[relation].verb.format(one=f"this {thing}", other=value)
        said = (f"{word}: {value}.", f"the {word} of this {thing} is {value}.", f"{verb}.")
        sentences.append(Sentence(text=said[wording]))
    return title, None, tuple(sentences)
