"""The environment `inquiry`: a proposer gets an answer and asks a question for it, and a solver searches for the
answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.searchqa.graph import FEWEST, MOST, RELATIONS, Fact, Graph, build_graph
from palaestra.registry import PositiveInt, register

PROPOSER, SOLVER = AGENTS = ("proposer", "solver")
SEARCH, ASK, ANSWER = "search", "ask", "answer"
Few = Annotated[int, pydantic.Field(ge=1, le=4)]
Fault = Literal["", "unasked", "unknown words", "leak", "too long", "few searches", "unanswerable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode. It is frozen, so a snapshot is the state itself."""

    graph: Graph
    seed: int
    answer: str
    question: tuple[str, ...] = ()  # the entity where it begins, and the relations to follow; empty: not asked yet
    documents: tuple[Fact, ...] = ()  # the facts that the proposer has read
    searches: frozenset[str] = frozenset()
    turn: int = 0  # of the present part: the proposer's, or one attempt
    found: tuple[Fact, ...] = ()  # the facts that the present attempt has read
    attempt: int = 0
    solved: int = 0
    proposed: bool = True

    def forward(self, question: Sequence[str], facts: Sequence[Fact] | None = None) -> str | None:
        """The entity to which a question leads, by these facts alone or by all of them; None, if it leads nowhere."""
        graph, (place, *relations) = self.graph, question
        known = set(graph.facts if facts is None else facts)
        entity = graph.names.index(place) if place in graph.names else -1
        for word in relations:
            fact = (entity, graph.words.index(word) if word in graph.words else -1)
            if fact not in known:
                return None
            entity = graph.facts[fact]
        return graph.names[entity] if entity >= 0 and relations else None


@register("environment", "inquiry")
class Inquiry(KeepsState[State]):
    """The proposer reads `hide elm`, searches, and asks `ask anna home`; the solver reads `find anna home`, searches
    too, and answers `answer elm`. The solver makes `attempts` attempts at a question, which share no memory.

    A question names an entity to begin with and the relations to follow. `search elm` shows facts about elm, `search
    anna home` those about anna's home. A question counts if its words are known, the answer is not among them, it is
    not too long, and the proposer has searched enough. With `check`, the facts that the proposer has read and some
    others must also lead from the question to the answer; the solver plays no role in this check. Held-out tasks, and
    all tasks where `questions` is "fixed", have their question from the start.

    Args:
        entities, relations: of the graphs, as in `searchqa`. Higher: more to search.
        graphs: the number of fixed graphs; held-out questions are about the same graphs.
        questions: "proposed" by the proposer, or "fixed": along the graph, with a number of hops from `hops`.
        hops: fewest and most hops of fixed questions.
        longest: most hops of a proposed question. Higher: harder questions are possible. Usual: 3 to 5.
        least_searches: different searches before a question counts. 0: none. Usual: 1.
        check: refuse questions that do not lead to the answer.
        noise_facts: facts that the check uses beside those that the proposer has read. Usual: 4.
        expert_hops: most hops of the expert's questions.
        shown: most facts that a search shows. Lower: shorter prompts, more searches.
        attempts: of the solver on a proposed question. Higher: its success is measured better. Usual: 4 or 5.
        max_turns: acts of the proposer, and of the solver in one attempt.

    Reward: 1 for the solver's right answer, which is the one that the proposer was given. The proposer gets 0 here; the
    part `question_difficulty` pays it. The `info` of the proposer's last step has `valid`, `hops` and `solved` (share
    of the attempts). The episode's `info` has `fault`, `asked`, `valid_questions`, `asked_hops`, `answered` (an attempt
    ends with this act), and `success` of the first attempt. A task with `question` and `answer` in its parameters
    repeats a question that was asked before.

    Raises: RecipeError, for numbers of hops in the wrong order.
    """

    agents: tuple[str, ...] = AGENTS
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "valid", "hops", "solved"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        entities: Annotated[int, pydantic.Field(ge=FEWEST, le=MOST)] = 12,
        relations: Annotated[int, pydantic.Field(ge=3, le=8)] = 5,
        graphs: PositiveInt = 8,
        questions: Literal["proposed", "fixed"] = "proposed",
        hops: tuple[Few, Few] = (1, 2),
        longest: PositiveInt = 4,
        least_searches: Annotated[int, pydantic.Field(ge=0)] = 1,
        check: bool = True,
        noise_facts: Annotated[int, pydantic.Field(ge=0)] = 4,
        expert_hops: Few = 2,
        shown: PositiveInt = 3,
        attempts: PositiveInt = 4,
        max_turns: PositiveInt = 6,
    ) -> None:
        Refusals("environment: inquiry").when_reversed(hops=hops)
        self._params: dict[str, Any] = {
            "entities": entities,
            "relations": relations,
            "graphs": graphs,
            "hops": list(hops),
        }
        self._questions, self._longest, self._least = questions, longest, least_searches
        self._check, self._noise, self._expert_hops = check, noise_facts, expert_hops
        self._shown, self._attempts, self._max_turns = shown, attempts, max_turns

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return self._proposer_manual() if agent == PROPOSER else self._solver_manual()

    def _proposer_manual(self) -> str:
        noise = " and a few others" if self._noise else ""
        check = f" The facts that your searches showed{noise} must lead from it to the answer." if self._check else ""
        times = f"{self._least} different searches" if self._least > 1 else "one search"
        searched = f" Make at least {times} before you ask." if self._least else ""
        return write_manual(
            "You get an answer and ask a question for it. A message such as `hide elm .` gives you the answer elm. "
            "The facts that your searches showed follow it, such as `anna home elm`: elm is anna's home. A question "
            f"is a name and 1 to {self._longest} relations to follow from there: `ask anna friend home` asks for the "
            f"home of anna's friend. {self._of_relations()} A question must not contain the answer.{check}{searched}",
            self._searches("facts that lead to it come first")
            | {"ask NAME RELATION": "ask; more relations may follow"},
            example="search elm",
            ending=f"You have {self._max_turns} turn{'s' * (self._max_turns != 1)}, and the last one must be the "
            f"question. A solver then makes {self._attempts} attempt{'s' * (self._attempts != 1)} at it. The episode "
            "succeeds if the question counts and the first attempt finds the answer.",
        )

    def _solver_manual(self) -> str:
        return write_manual(
            "You answer a question with the help of searches. A message such as `find anna friend home .` asks for the "
            "home of anna's friend: begin at anna and follow one relation after the other. The facts that your "
            "searches showed follow it, such as `anna friend boris`: boris is anna's friend. "
            f"{self._of_relations()}",
            self._searches("facts that begin with it come first") | {"answer NAME": "answer, with the name alone"},
            example="search anna friend",
            ending=f"You have {self._max_turns} turn{'s' * (self._max_turns != 1)} for an answer, and the last one "
            "must be the answer. You may be asked the same question several times, and your searches begin anew each "
            "time. The episode succeeds if the first answer is right.",
        )

    def _of_relations(self) -> str:
        words = [relation.word for relation in RELATIONS[: self._params["relations"]]]
        return f"The relations are {', '.join(words)}."

    def _searches(self, order: str) -> dict[str, str]:
        most = f"{self._shown} fact{'s' * (self._shown != 1)}"
        return {
            "search NAME": f"show up to {most} about a name; {order}",
            "search NAME RELATION": f"show up to {most} about a name that have this relation",
        }

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` answers to ask for, or questions; those that are held out are questions."""
        fixed = self._questions == "fixed" or split != "train"
        return seeded_tasks("inquiry", {**self._params, "fixed": fixed}, split, n, seed)

    def reset(self, task: Task) -> StepResult:
        start = self._first(task)
        self.state = replace(start, proposed=not start.question)
        return several(self._observe(self.state))

    def content(self, task: Task) -> Any:
        """The graph, and the answer with the question, where there is one."""
        start = self._first(task)
        return as_json((start.graph, start.answer, start.question))

    def _first(self, task: Task) -> State:
        world, draw = {**self._params, **task.params}, random.Random(task.seed)
        number = draw.randrange(world["graphs"])
        graph = build_graph(world["entities"], world["relations"], False, number)
        if "question" in world:  # one that was asked before
            return State(graph=graph, seed=task.seed, answer=world["answer"], question=tuple(world["question"]))
        if world.get("fixed"):
            way = _walk(graph, draw.randint(*world["hops"]), draw)
            words = (graph.names[way[0][0]], *(graph.words[relation] for _, relation in way))
            return State(graph=graph, seed=task.seed, answer=graph.names[graph.facts[way[-1]]], question=words)
        answer = draw.choice(sorted(set(graph.facts.values())))
        return State(graph=graph, seed=task.seed, answer=graph.names[answer])

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self.state
        ((name, action),) = actions.items()
        words = tuple(str(action.value).lower().split())
        state = replace(state, turn=state.turn + 1)
        return self._propose(state, words) if name == PROPOSER else self._solve(state, words)

    # ---- both parts -----------------------------------------------------------------------------------------
    def _propose(self, state: State, words: tuple[str, ...]) -> StepResult:
        kind, *rest = words or ("",)
        info: dict[str, Any] = {}
        if kind == SEARCH and rest and state.turn < self._max_turns:
            new = tuple(fact for fact in self._about(state, rest, incoming=True) if fact not in state.documents)
            state = replace(state, documents=state.documents + new, searches=state.searches | {" ".join(rest)})
            return self._go_on(state, info)
        if kind != ASK:
            if kind != SEARCH or not rest:
                info["invalid"] = {PROPOSER: True}
            if state.turn < self._max_turns:
                return self._go_on(state, info)
        fault = self._fault(state, rest) if kind == ASK else "unasked"
        told = {"valid": float(not fault), "hops": float(len(rest) - 1 if not fault else 0), "solved": 0.0}
        info |= act_info(PROPOSER, told)
        info |= {"fault": fault, "asked": " ".join(rest), "answer": state.answer, "valid_questions": told["valid"]}
        if fault:
            return self._end(state, PROPOSER, info)
        info["asked_hops"] = told["hops"]
        return self._go_on(replace(state, question=tuple(rest), turn=0), info)

    def _solve(self, state: State, words: tuple[str, ...]) -> StepResult:
        kind, *rest = words or ("",)
        info: dict[str, Any] = {"answered": False}
        if kind == SEARCH and rest and state.turn < self._max_turns:
            new = tuple(fact for fact in self._about(state, rest, incoming=False) if fact not in state.found)
            return self._go_on(replace(state, found=state.found + new), info)
        if kind not in (SEARCH, ANSWER) or not rest:
            info["invalid"] = {SOLVER: True}
            if state.turn < self._max_turns:
                return self._go_on(state, info)
        right = kind == ANSWER and " ".join(rest) == state.answer
        state = replace(state, attempt=state.attempt + 1, solved=state.solved + right, turn=0, found=())
        info["answered"] = True
        if state.attempt == 1:
            info["success"] = right
        if state.proposed and state.attempt < self._attempts:
            return self._go_on(state, info, float(right))
        if state.proposed:
            info["solved"] = {PROPOSER: state.solved / state.attempt}
        return self._end(state, SOLVER, info, float(right))

    def _go_on(self, state: State, info: Mapping[str, Any], reward: float = 0.0) -> StepResult:
        self.state = state
        return several(self._observe(state), rewards={SOLVER: reward} if reward else {}, info=info)

    def _end(self, state: State, name: str, info: Mapping[str, Any], reward: float = 0.0) -> StepResult:
        self.close()
        return several({}, rewards={name: reward}, over={name, PROPOSER} if state.proposed else {name}, info=info)

    def _fault(self, state: State, question: Sequence[str]) -> Fault:
        """Why a proposed question does not count; "" if it does."""
        graph = state.graph
        if len(question) < 2 or question[0] not in graph.names or set(question[1:]) - set(graph.words):
            return "unknown words"
        if state.answer in question:
            return "leak"
        if len(question) - 1 > self._longest:
            return "too long"
        if len(state.searches) < self._least:
            return "few searches"
        if self._check and not self._answerable(state, question):
            return "unanswerable"
        return ""

    def _answerable(self, state: State, question: Sequence[str]) -> bool:
        """Whether the facts that the proposer has read, and some others, lead from the question to the answer."""
        if not state.documents:
            return False
        others = [fact for fact in sorted(state.graph.facts) if fact not in state.documents]
        noise = random.Random(derive(state.seed, "noise")).sample(others, min(self._noise, len(others)))
        return state.forward(question, (*state.documents, *noise)) == state.answer

    def _about(self, state: State, words: Sequence[str], *, incoming: bool) -> list[Fact]:
        """The facts that a search shows, of the relations that it names, if any; facts that lead to the entity come
        first or last.
        """
        graph = state.graph
        wanted = {graph.words.index(word) for word in words if word in graph.words}
        named = {graph.names.index(word) for word in words if word in graph.names}
        hits = [
            fact
            for fact in sorted(graph.facts)
            if (fact[0] in named or graph.facts[fact] in named) and (not wanted or fact[1] in wanted)
        ]
        random.Random(derive(state.seed, "order", state.attempt, *words)).shuffle(hits)
        return sorted(hits, key=lambda fact: (fact[0] in named) == incoming)[: self._shown]

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The proposer goes back from the answer, one search a hop, and asks; the solver searches hop by hop."""
        state = self.state
        words = self._expert_solver(state) if state.question else self._expert_proposer(state)
        return Action(text=" ".join(words))

    def _expert_proposer(self, state: State) -> tuple[str, ...]:
        graph, draw = state.graph, random.Random(derive(state.seed, "expert"))
        place, relations, hops = state.answer, list[str](), draw.randint(1, self._expert_hops)
        passed = {state.answer}
        while len(relations) < hops:
            if place not in state.searches:
                return SEARCH, place
            into = [
                f for f in state.documents if graph.names[graph.facts[f]] == place and graph.names[f[0]] not in passed
            ]
            if not into:
                break
            entity, relation = into[draw.randrange(len(into))]
            place, relations = graph.names[entity], [graph.words[relation], *relations]
            passed.add(place)
        return ASK, place, *(relations or ["nothing"])

    def _expert_solver(self, state: State) -> tuple[str, ...]:
        graph, place = state.graph, state.question[0]
        for word in state.question[1:]:
            fact = (graph.names.index(place), graph.words.index(word))
            if fact not in state.found:
                return (SEARCH, place, word) if fact in graph.facts else (ANSWER, place)
            place = graph.names[graph.facts[fact]]
        return ANSWER, place

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> dict[str, Observation]:
        name, facts = (SOLVER, state.found) if state.question else (PROPOSER, state.documents)
        said = " , ".join(state.graph.spell(fact) for fact in facts)
        asked = f"find {' '.join(state.question)} ." if state.question else f"hide {state.answer} ."
        text = f"{asked} {said}".strip()
        return {name: Observation(text=text, state_key=text)}


def _walk(graph: Graph, hops: int, draw: random.Random) -> list[Fact]:
    """Facts that follow each other and visit no entity twice: `hops` of them, or the longest such way found."""
    best: list[Fact] = []
    for _ in range(50):
        entity = draw.choice(sorted({fact[0] for fact in graph.facts}))
        way, passed = list[Fact](), {entity}
        while len(way) < hops:
            steps = [fact for fact in graph.of(entity) if graph.facts[fact] not in passed]
            if not steps:
                break
            way.append(draw.choice(steps))
            entity = graph.facts[way[-1]]
            passed.add(entity)
        best = max(best, way, key=len)
        if len(best) == hops:
            break
    return best
