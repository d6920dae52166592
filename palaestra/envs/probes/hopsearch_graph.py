"""Knowledge graphs, questions about them, and a search that may err: for `hopsearch` and environments like it."""

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
    """`facts[entity][relation]` is the entity that the relation leads to. It is never `entity` itself."""

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
    """The question where `relations` lead, one after the other, from the entity `start`."""

    start: Entity
    relations: tuple[Relation, ...]


@lru_cache(maxsize=4096)
def build_graph(entities: int, relations: int, seed: int) -> Graph:
    """A graph of facts that are drawn uniformly at random. No fact leads back to its own entity."""
    draw = random.Random(derive(seed, "graph"))
    others = [[x for x in range(entities) if x != entity] for entity in range(entities)]
    return Graph(
        facts=tuple(tuple(draw.choice(others[entity]) for _ in range(relations)) for entity in range(entities))
    )


def ask(graph: Graph, hops: tuple[int, int], seed: int) -> Question:
    """A question of `hops[0]` to `hops[1]` relations. Of up to 100 draws, the first that visits no entity twice."""
    draw = random.Random(derive(seed, "question"))
    count = draw.randint(*hops)  # `hops_of` draws the same
    for _ in range(100):
        relations = tuple(draw.randrange(len(graph.facts[0])) for _ in range(count))
        question = Question(start=draw.randrange(len(graph.facts)), relations=relations)
        if len(set(chain(graph, question))) == count + 1:
            break
    return question


def hops_of(hops: tuple[int, int], seed: int) -> int:
    """How many relations the question has that `ask` makes of the same seed."""
    return random.Random(derive(seed, "question")).randint(*hops)


def chain(graph: Graph, question: Question) -> list[Entity]:
    """The entities from the question's start to its answer, both included."""
    found = [question.start]
    for relation in question.relations:
        found.append(graph.facts[found[-1]][relation])
    return found


def answer(graph: Graph, question: Question) -> Entity:
    """The entity that the question asks for."""
    return chain(graph, question)[-1]


def search(graph: Graph, entity: Entity, relation: Relation, *, noise: float, seed: int) -> Entity:
    """The entity that the relation leads to, or any other one with probability `noise`. `seed` decides which."""
    true = graph.facts[entity][relation]
    draw = random.Random(derive(seed, "search"))
    if draw.random() >= noise:
        return true
    return draw.choice([x for x in range(len(graph.facts)) if x != true])


class Relevance:
    """Decides which queries of an episode are relevant.

    A query is relevant if it was never made before, and if it asks for the next relation of a question at an entity
    that searches along this question reached. A wrong result counts as reached, since the agent cannot know that the
    search erred.
    """

    def __init__(self, questions: tuple[Question, ...]) -> None:
        self._questions = questions
        self._found: dict[tuple[Entity, Relation], set[Entity]] = {}

    def take(self, entity: Entity, relation: Relation, found: Entity) -> bool:
        """Whether a query is relevant. Its result is remembered for later queries."""
        query = (entity, relation)
        leads = query not in self._found and any(query in self._due(question) for question in self._questions)
        self._found.setdefault(query, set()).add(found)
        return leads

    def _due(self, question: Question) -> set[tuple[Entity, Relation]]:
        """The queries along a question, from all entities that searches have reached."""
        due, reached = set(), {question.start}
        for relation in question.relations:
            queries = {(entity, relation) for entity in reached}
            due |= queries
            reached = {found for query in queries for found in self._found.get(query, ())}
        return due
