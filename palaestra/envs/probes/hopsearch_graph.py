"""Knowledge graphs, questions about them, and a search that may err: what `hopsearch` and its relatives share.

Knows entities, relations and chains of facts. Knows nothing of agents, turns or rewards.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from palaestra.data import derive

ENTITIES = (
    *("amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "harbor", "island", "jade"),
    *("kelp", "lagoon", "maple", "nectar", "onyx", "pearl", "quartz", "reef", "saffron", "thistle"),
    *("umber", "violet", "willow", "yarrow", "zephyr", "basalt", "coral", "delta", "elm", "fern"),
    *("garnet", "hazel", "ivory", "juniper", "lichen", "meadow", "opal", "pine", "ridge", "slate"),
)
RELATIONS = ("owner", "maker", "friend", "rival")
Entity = int
Relation = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """`facts[entity][relation]` is the entity that the relation leads to; never the entity itself."""

    facts: tuple[tuple[Entity, ...], ...]

    @property
    def entities(self) -> tuple[str, ...]:
        """Names of the entities, by number."""
        return ENTITIES[: len(self.facts)]

    @property
    def relations(self) -> tuple[str, ...]:
        """Names of the relations, by number."""
        return RELATIONS[: len(self.facts[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Where do these relations lead from `start`, one after the other?"""

    start: Entity
    relations: tuple[Relation, ...]


@lru_cache(maxsize=4096)
def build_graph(entities: int, relations: int, seed: int) -> Graph:
    """A graph of uniformly random facts, without facts that lead back to where they start."""
    draw = random.Random(derive(seed, "graph"))
    others = [[x for x in range(entities) if x != entity] for entity in range(entities)]
    return Graph(
        facts=tuple(tuple(draw.choice(others[entity]) for _ in range(relations)) for entity in range(entities))
    )


def ask(graph: Graph, hops: tuple[int, int], seed: int) -> Question:
    """A question of `hops[0]` to `hops[1]` relations whose chain visits no entity twice, if there is one."""
    draw = random.Random(derive(seed, "question"))
    count = draw.randint(*hops)  # as `hops_of` says
    for _ in range(100):
        relations = tuple(draw.randrange(len(graph.facts[0])) for _ in range(count))
        question = Question(start=draw.randrange(len(graph.facts)), relations=relations)
        if len(set(chain(graph, question))) == count + 1:
            break
    return question


def hops_of(hops: tuple[int, int], seed: int) -> int:
    """Relations of the question that `ask` makes of the same seed."""
    return random.Random(derive(seed, "question")).randint(*hops)


def chain(graph: Graph, question: Question) -> list[Entity]:
    """The entities on the way, from the question's start to its answer."""
    found = [question.start]
    for relation in question.relations:
        found.append(graph.facts[found[-1]][relation])
    return found


def answer(graph: Graph, question: Question) -> Entity:
    """Where the question's relations lead."""
    return chain(graph, question)[-1]


def search(graph: Graph, entity: Entity, relation: Relation, *, noise: float, seed: int) -> Entity:
    """The fact; with probability `noise` any other entity. The same seed finds the same."""
    true = graph.facts[entity][relation]
    draw = random.Random(derive(seed, "search"))
    if draw.random() >= noise:
        return true
    return draw.choice([x for x in range(len(graph.facts)) if x != true])


class Relevance:
    """Tells queries that lead on from those that do not, by what searches found so far.

    A query is relevant if it was never made before, and asks for the next relation of a question at an entity
    that searches along the same question led to. What a search found counts even where it erred: nobody can
    be blamed for having been told so.
    """

    def __init__(self, questions: tuple[Question, ...]) -> None:
        self._questions = questions
        self._found: dict[tuple[Entity, Relation], set[Entity]] = {}

    def take(self, entity: Entity, relation: Relation, found: Entity) -> bool:
        """Whether this query was relevant; what it found is remembered."""
        query = (entity, relation)
        leads = query not in self._found and any(query in self._due(question) for question in self._questions)
        self._found.setdefault(query, set()).add(found)
        return leads

    def _due(self, question: Question) -> set[tuple[Entity, Relation]]:
        """The queries along a question, as far as searches led."""
        due, reached = set(), {question.start}
        for relation in question.relations:
            queries = {(entity, relation) for entity in reached}
            due |= queries
            reached = {found for query in queries for found in self._found.get(query, ())}
        return due
