"""Hopsearch: answer questions of several hops about a random knowledge graph, with a search tool that may err.

Graphs, questions and the search are in `hopsearch_graph`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.kit.choices import choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.entities import named_share
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.probes.hopsearch_graph import (
    ENTITIES,
    RELATIONS,
    Entity,
    Graph,
    Question,
    Relation,
    Relevance,
    answer,
    ask,
    build_graph,
    chain,
    hops_of,
    search,
)
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
REPEAT, RESTART, ANSWER = "repeat", "restart", "answer"
Range = tuple[PositiveInt, PositiveInt]
EVIDENCE = ("once", "agreed", "differed")  # what repeating a search told about the present entity


@dataclass(slots=True)
class State:
    """The state of one episode. `path` leads from `origin` to the present entity, as searches found it."""

    graph: Graph
    questions: tuple[Question, ...]
    relevance: Relevance
    seed: int
    noise: float
    name: str
    origin: Entity
    path: list[tuple[Relation, Entity]] = field(default_factory=list)
    evidence: str = EVIDENCE[0]
    facts: dict[tuple[Entity, Relation], Entity] = field(default_factory=dict)  # the latest result of each query
    said: str = ""  # all that the agent has said
    turn: int = 0
    calls: int = 0

    @property
    def current(self) -> Entity:
        """The present entity: the one at the end of the path."""
        return self.path[-1][1] if self.path else self.origin

    def go_to(self, entity: Entity) -> None:
        """Continue from an entity. If the path visits it, the path is cut off there. If not, it is the new origin."""
        passed = [self.origin, *(found for _, found in self.path)]
        if entity in passed:
            del self.path[passed.index(entity) :]
        else:
            self.origin, self.path = entity, []


@register("environment", "hopsearch")
class HopSearch(KeepsState[State]):
    """Answer questions of several hops by searching a knowledge graph, one fact at a time.

    `question: amber maker owner.` asks for the owner of the maker of amber. `search amber maker` finds
    `amber maker birch.`; `search birch owner` finds the answer; `answer ENTITY` ends the episode. Several questions are
    answered together, in their order: `answer ENTITY ENTITY …`, or `answer 1: ENTITY. 2: ENTITY. …` as the expert does.

    With one question there is also a fixed set of actions, for policies that choose an index or a short text. They
    continue from the present entity, which is the one that was found last. `follow RELATION` searches from it, `repeat`
    makes the last search again (the new result replaces the old one), `restart` returns to the question's entity, and
    `answer` answers with the present entity.

    Args:
        entities: entities of the graph, 6–40. Higher: a guess is right less often. Usual: 40.
        relations: relations that lead from each entity, 1–4. Higher: more wrong turns. Usual: 4.
        hops: fewest and most relations of a question; all numbers between are equally likely. Higher: more searches in
            a row must be right.
        questions: fewest and most independent questions of an episode. If there can be several, actions are texts only.
        noise: probability that a search finds a wrong entity. The same search may find another one later.
        graphs: 0: a new graph for every seed. k > 0: all seeds of all splits share k graphs.
        in_turn: of several questions, state each one only when the one before is worked out, and ask for all answers
            at the end: `2: dune. question: elm rival.` A policy that forgets the first result cannot answer. False:
            state all at the start.
        max_turns: turns until the episode is cut off.

    Reward: the share of right answers, which is 1 or 0 for one question. `success`: all answers are right. An action
    that cannot be read, such as a search for an unknown entity, changes nothing but takes a turn.

    The `info` of a step has `process`, 1 for a relevant query and 0 for any other action (an answer has none);
    `executable`, 0 for an action that could not be read; `calls`, the number of searches so far; and `entities`: of the
    entities on the way to the answers, without the start, the share that the agent has named so far in searches,
    answers or other words. The last step has `stratum`, the number of searches as a text. With several questions,
    each step has `gist`, which no policy sees: a note of the results so far, such as `1: birch. question 2: cedar
    owner.`, the answer to the first question and what is left of the second.

    `vector`, for one question: its relations, the relations followed so far, the number of these, what repeating a
    search told, and the share of turns left.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process", "executable", "stratum", "calls", "entities"})

    def __init__(
        self,
        *,
        entities: Annotated[int, pydantic.Field(ge=6, le=len(ENTITIES))] = 40,
        relations: Annotated[int, pydantic.Field(ge=1, le=len(RELATIONS))] = 4,
        hops: Range = (1, 3),
        questions: Range = (1, 1),
        noise: Fraction = 0.1,
        graphs: Annotated[int, pydantic.Field(ge=0)] = 0,
        in_turn: bool = False,
        max_turns: PositiveInt = 8,
    ) -> None:
        Refusals("environment: hopsearch").when_reversed(hops=hops, questions=questions)
        self._params: dict[str, Any] = {
            "entities": entities,
            "relations": relations,
            "hops": list(hops),
            "questions": list(questions),
            "noise": noise,
            "graphs": graphs,
        }
        self._in_turn = in_turn and questions[1] > 1
        self._max_turns, self._hops, self._single = max_turns, hops[1], questions[1] == 1
        self.actions = (*(f"follow {name}" for name in RELATIONS[:relations]), REPEAT, RESTART, ANSWER)
        self.action_count = len(self.actions) if self._single else None
        self.vector_size = 2 * hops[1] * relations + hops[1] + 2 + len(EVIDENCE) + 1 if self._single else None
        if not self._single:
            self.abilities = without(self.abilities, "vector")

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You answer a question by searching facts. `question: amber maker owner.` asks for the owner of the "
            "maker of amber: search amber maker, and then search the owner of what you found.",
            {
                "search ENTITY RELATION": "find a fact",
                "follow RELATION": "search from the entity found last",
                "repeat": "make the last search again",
                "restart": "return to the entity of the question",
                "answer ENTITY": "answer; several answers stand in the order of the questions",
                "answer": "answer with the entity found last",
            },
            example="search amber maker",
            ending=f"The answer ends the episode. It succeeds if it is right.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` sets of questions. Splits share no seed."""
        return seeded_tasks("hopsearch", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The graph and the questions."""
        _, graph, asked = _drawn({**self._params, **task.params}, task.seed)
        return as_json((graph, asked))

    def difficulty(self, task: Task) -> float:
        """Relations and questions, counted together. For one question this is the number of turns that it needs."""
        world = {**self._params, **task.params}
        count = _count(world, task.seed)
        return float(sum(hops_of(tuple(world["hops"]), derive(task.seed, k)) for k in range(count)) + count)

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        number, graph, asked = _drawn(world, task.seed)
        name = f"{number}/{' '.join(_spell(graph, question) for question in asked)}"
        self.state = State(graph, asked, Relevance(asked), task.seed, world["noise"], name, asked[0].start)
        said = _state_question(self.state, 0) if self._in_turn else _state_questions(graph, asked)
        seen = self._observe(self.state, said)
        return single(AGENT, seen, info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self.state
        meant = self._read(actions[AGENT].value)
        state.said += f" {_said(state.graph, actions[AGENT].value, meant)}"
        gold = [state.graph.entities[entity] for q in state.questions for entity in chain(state.graph, q)[1:]]
        told: dict[str, Any] = {"executable": float(meant is not None), "entities": named_share(state.said, gold)}
        state.turn += 1
        right: list[bool] | None = None
        if meant is None:
            said = "not understood."
            told["process"] = 0.0
        elif meant[0] == ANSWER:
            said = ""
            right = [given == answer(state.graph, q) for given, q in zip(meant[1:], state.questions, strict=True)]
        elif meant[0] == RESTART:
            state.go_to(state.questions[0].start)
            said = f"back to {state.graph.entities[state.current]}."
            told["process"] = 0.0
        else:
            before = _present(state)
            said, relevant = self._search(state, *meant[1:])
            told["process"] = float(relevant)
            if self._in_turn and (now := _present(state)) > before:
                said = f"{now}: {state.graph.entities[state.current]}. {_state_question(state, now)}"
        if not self._single:
            told["gist"] = _gist(state, in_turn=self._in_turn)
        return self._result(state, said, right, told, readable=meant is not None)

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Follow the relations of each question, then answer. The expert does not check what searches found."""
        state = self.state
        names, relations = state.graph.entities, state.graph.relations
        if not self._single:
            return Action(text=_next_of_all(state))
        question, followed = state.questions[0], tuple(relation for relation, _ in state.path)
        if state.origin != question.start or followed != question.relations[: len(followed)]:
            return choice(RESTART, self.actions)
        if followed == question.relations:
            return Action(text=f"{ANSWER} {names[state.current]}", value=self.actions.index(ANSWER))
        due = relations[question.relations[len(followed)]]
        return Action(text=f"search {names[state.current]} {due}", value=self.actions.index(f"follow {due}"))

    # ---- playing ------------------------------------------------------------------------------------------
    def _read(self, value: Any) -> tuple[Any, ...] | None:
        """("search", entity, relation), ("answer", entity, …) or ("restart",). None if the action cannot be read."""
        if isinstance(value, int | np.integer) and self._single and 0 <= value < len(self.actions):
            value = self.actions[int(value)]
        if not isinstance(value, str):
            return None
        state = self.state
        entities, relations = state.graph.entities, state.graph.relations
        match value.lower().split():
            case ["search", entity, relation] if entity in entities and relation in relations:
                return "search", entities.index(entity), relations.index(relation)
            case ["follow", relation] if self._single and relation in relations:
                return "search", state.current, relations.index(relation)
            case ["repeat"] if self._single and state.path:
                before = state.path[-2][1] if len(state.path) > 1 else state.origin
                return "search", before, state.path[-1][0]
            case ["restart"] | ["repeat"] if self._single:  # with an empty path, `repeat` does the same
                return (RESTART,)
            case ["answer"] if self._single:
                return ANSWER, state.current
            case ["answer", *words]:
                # Numbers and dots only make the answer easier to read.
                given = [word.rstrip(".") for word in words if not re.fullmatch(r"\d+:", word)]
                if len(given) == len(state.questions) and set(given) <= set(entities):
                    return ANSWER, *(entities.index(entity) for entity in given)
        return None

    def _search(self, state: State, entity: Entity, relation: Relation) -> tuple[str, bool]:
        """Search, and move to the result. Returns a text of the result, and whether the query was relevant."""
        found = search(state.graph, entity, relation, noise=state.noise, seed=derive(state.seed, state.turn))
        if entity != state.current:
            state.go_to(entity)
        state.path.append((relation, found))
        before = state.facts.get((entity, relation))
        state.evidence = EVIDENCE[0] if before is None else EVIDENCE[1] if before == found else EVIDENCE[2]
        state.facts[entity, relation] = found
        state.calls += 1
        names = state.graph.entities
        said = f"{names[entity]} {state.graph.relations[relation]} {names[found]}."
        return said, state.relevance.take(entity, relation, found)

    def _result(
        self, state: State, said: str, right: list[bool] | None, told: dict[str, Any], *, readable: bool
    ) -> StepResult:
        answered = right is not None
        cut = not answered and state.turn >= self._max_turns
        # Every step tells the outcome and the stratum, since a limit of the run may cut the episode off.
        info: dict[str, Any] = {"success": answered and all(right or ()), "stratum": str(state.calls)}
        return single(
            AGENT,
            None if answered else self._observe(state, said),
            reward=sum(right) / len(right) if right else 0.0,
            over=answered,
            cut=cut,
            act={**told, "calls": state.calls},
            readable=readable,
            info=info,
        )

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State, text: str) -> Observation:
        names = state.graph.entities
        if not self._single:
            facts = sorted(f"{entity}.{relation}.{found}" for (entity, relation), found in state.facts.items())
            return Observation(text=text, state_key=f"{state.name}/{' '.join(facts)}")
        way = " ".join(f"{state.graph.relations[relation]} {names[found]}" for relation, found in state.path)
        impossible = set()
        if not state.path:
            impossible = {REPEAT} if state.origin != state.questions[0].start else {REPEAT, RESTART}
        return Observation(
            text=text,
            vector=self._vector(state),
            legal=[index for index, action in enumerate(self.actions) if action not in impossible],
            state_key=f"{state.name}/{names[state.origin]} {way}/{state.evidence}",
        )

    def _vector(self, state: State) -> np.ndarray:
        relations, hops = len(state.graph.relations), self._hops
        lists = np.zeros((2, hops, relations), np.float32)
        followed = [relation for relation, _ in state.path]
        for row, chosen in zip(lists, (state.questions[0].relations, followed), strict=True):
            for place, relation in enumerate(chosen[:hops]):
                row[place, relation] = 1
        depth, evidence = np.zeros(hops + 2, np.float32), np.zeros(len(EVIDENCE), np.float32)
        depth[min(len(followed), hops + 1)] = 1
        evidence[EVIDENCE.index(state.evidence)] = 1
        left = np.float32(1 - state.turn / self._max_turns)
        return np.concatenate([lists.reshape(-1), depth, evidence, [left]]).astype(np.float32)


def _drawn(world: Mapping[str, Any], seed: int) -> tuple[int, Graph, tuple[Question, ...]]:
    """The number of a seed's graph, the graph, and the questions about it."""
    number = seed // 2 % world["graphs"] if world["graphs"] else seed  # the last bit of a seed tells its split
    graph = build_graph(world["entities"], world["relations"], number)
    return number, graph, tuple(ask(graph, tuple(world["hops"]), derive(seed, k)) for k in range(_count(world, seed)))


def _count(world: Mapping[str, Any], seed: int) -> int:
    """How many questions the task of a seed has."""
    fewest, most = world["questions"]
    return int(fewest + derive(seed, "count") % (most - fewest + 1))


def _said(graph: Graph, value: Any, meant: tuple[Any, ...] | None) -> str:
    """What an action says: its text, if it has one, and the names of the entities in it."""
    about = meant[1:2] if meant and meant[0] == "search" else meant[1:] if meant else ()
    return " ".join([value if isinstance(value, str) else "", *(graph.entities[entity] for entity in about)])


def _state_questions(graph: Graph, questions: Sequence[Question]) -> str:
    """The text of the questions: `question: amber maker owner.`, or `question 1: … question 2: …`."""
    if len(questions) == 1:
        return f"question: {_spell(graph, questions[0])}."
    return " ".join(f"question {k}: {_spell(graph, question)}." for k, question in enumerate(questions, start=1))


def _state_question(state: State, number: int) -> str:
    """The question of a number, counted from 0. After the last question: `answer all.`"""
    if number == len(state.questions):
        return "answer all."
    return f"question: {_spell(state.graph, state.questions[number])}."


def _spell(graph: Graph, question: Question) -> str:
    return " ".join((graph.entities[question.start], *(graph.relations[r] for r in question.relations)))


def _reached(state: State, question: Question) -> tuple[Entity, tuple[Relation, ...]]:
    """The entity that searches along a question have reached, and the relations that are left."""
    entity = question.start
    for hop, relation in enumerate(question.relations):
        if (entity, relation) not in state.facts:
            return entity, question.relations[hop:]
        entity = state.facts[entity, relation]
    return entity, ()


def _next_of_all(state: State) -> str:
    """The next search of the first question that is not worked out. If all are worked out: their answers."""
    present = _present(state)
    if present == len(state.questions):
        return f"{ANSWER} {_gist(state, in_turn=False)}"
    entity, left = _reached(state, state.questions[present])
    return f"search {state.graph.entities[entity]} {state.graph.relations[left[0]]}"


def _present(state: State) -> int:
    """The number of the first question that is not worked out, counted from 0."""
    left = (number for number, question in enumerate(state.questions) if _reached(state, question)[1])
    return next(left, len(state.questions))


def _gist(state: State, *, in_turn: bool) -> str:
    """The answers found, such as `1: birch.`, and what is left of other questions: `question 2: cedar owner.`"""
    notes = []
    for number, question in enumerate(state.questions):
        entity, left = _reached(state, question)
        if not left:
            notes.append(f"{number + 1}: {state.graph.entities[entity]}.")
        elif left != question.relations or (in_turn and number == _present(state)):
            name = "question" if in_turn else f"question {number + 1}"
            notes.append(f"{name}: {_spell(state.graph, Question(start=entity, relations=left))}.")
    return " ".join(notes)
