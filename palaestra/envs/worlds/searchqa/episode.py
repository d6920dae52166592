"""The state of an episode of `searchqa`, what searches and openings change in it, and its `info`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data import derive
from palaestra.envs.kit.entities import named_share
from palaestra.envs.worlds.searchqa.actions import ANSWER, Act
from palaestra.envs.worlds.searchqa.graph import Fact
from palaestra.envs.worlds.searchqa.passages import Corpus, Read, build_corpus
from palaestra.envs.worlds.searchqa.questions import Question

AGENT = "player"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The state of one episode. It is frozen, so a snapshot needs no copy.

    Attributes:
        read: sentences that the agent was shown. queries: its searches. seen: passages of which it was shown a part.
        said: the latest result. words: everything that the agent wrote.
    """

    corpus: Corpus
    question: Question
    seed: int
    noise: float
    known: float
    read: frozenset[Read] = frozenset()
    queries: tuple[str, ...] = ()
    seen: frozenset[str] = frozenset()
    said: str = ""
    words: str = ""
    turn: int = 0
    searches: int = 0
    calls: int = 0
    errors: int = 0

    @property
    def found(self) -> list[Fact]:
        """The facts that the question needs and the agent has read."""
        told = self.corpus.facts(self.read)
        return [fact for fact in self.question.gold if fact in told]


def place(world: Mapping[str, Any], seed: int) -> tuple[int, int | None]:
    """The number of the graph, and the half of its questions that this split may ask. None: all questions.

    The last bit of a seed is 0 for training and 1 for all other splits.
    """
    graphs, side = world["graphs"], seed % 2
    if not graphs:
        return seed, None
    if world["held_out"] == "graphs":
        return seed // 2 % graphs + side * graphs, None
    return seed // 2 % graphs, side


def corpus_of(world: Mapping[str, Any], number: int) -> Corpus:
    """The corpus of the graph with this number."""
    names = ("entities", "relations", "distractors", "wordings", "renamed")
    return build_corpus(*(world[name] for name in names), number)


def queries_for(corpus: Corpus, fact: Fact) -> list[str]:
    """Queries for a fact: with the word of its relation, and with the kind of its entity, because some wordings leave
    that word out."""
    graph = corpus.graph
    name = graph.names[fact[0]]
    return [f"{name} {graph.words[fact[1]]}", f"{name} {graph.kinds[fact[0]]}"]


def opened(state: State, doc: str) -> State:
    """The state after a passage was shown as a whole. An unknown passage is an error."""
    passage = state.corpus.passages.get(doc)
    if passage is None:
        return failed(replace(state, calls=state.calls + 1), f"no passage {doc}")
    numbers = tuple(range(len(passage.sentences)))
    return replace(
        state,
        read=state.read | {(doc, number) for number in numbers},
        seen=state.seen | {doc},
        said=passage.show(numbers),
        calls=state.calls + 1,
    )


def searched(state: State, query: str, k: int, words: int) -> State:
    """The state after a search that shows `k` passages, with about `words` words of each."""
    query = query.lower()
    hits = list(state.corpus.search(query, k))
    if derive(state.seed, "noise", state.turn, query) / 2**63 < state.noise:
        hits = _disturbed(state, query, hits, k)
    parts = [(passage, passage.excerpt(query, words)) for passage in map(state.corpus.passages.__getitem__, hits)]
    return replace(
        state,
        read=state.read | {(passage.id, number) for passage, numbers in parts for number in numbers},
        seen=state.seen | set(hits),
        queries=(*state.queries, query),
        said=" ".join(passage.show(numbers) for passage, numbers in parts) or "nothing found.",
        searches=state.searches + 1,
        calls=state.calls + 1,
    )


def _disturbed(state: State, query: str, hits: list[str], k: int) -> list[str]:
    """The hits of a search that goes wrong: without the best one, or with another passage in its place."""
    coin = derive(state.seed, "disturbed", state.turn, query)
    if coin % 2:
        return list(state.corpus.search(query, k + 1))[1:]
    others = [doc for doc in state.corpus.passages if doc not in hits]
    return [others[coin // 2 % len(others)], *hits[1:]]


def failed(state: State, why: str) -> State:
    """The state after an act that failed. The agent is told why."""
    return replace(state, errors=state.errors + 1, said=f"error: {why}.")


def tell(before: State, after: State, act: Act | None, formed: bool) -> dict[str, Any]:
    """The `info` of the last act.

    Args:
        formed: whether it had the asked form.
    """
    went_wrong = after.errors > before.errors
    graph, gold = after.corpus.graph, after.question.gold
    told: dict[str, Any] = {
        "tool_call": float(after.calls > before.calls),
        "tool_error": float(went_wrong),
        "executable": float(not went_wrong),
        "format": float(formed),
        "entities": named_share(after.words, {graph.names[graph.facts[fact]] for fact in gold}),
    }
    if act is None or act.kind != ANSWER:
        told["process"] = float(len(after.found) > len(before.found))
    due = next((fact for fact in gold if fact not in after.found), None)
    told["due"] = "" if due is None else queries_for(after.corpus, due)[0]
    return told


def standing(state: State) -> dict[str, Any]:
    """The `info` of the episode so far."""
    gold = state.question.gold
    return {
        "success": False,
        "searches": state.searches,
        "calls": state.calls,
        "errors": state.errors,
        "gold_hops": len(gold),
        "found_hops": len(state.found),
        "known_hops": sum(state.corpus.knows(fact, state.known) for fact in set(gold)),
        "stratum": str(len(gold)),
    }
