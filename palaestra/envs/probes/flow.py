"""Flow: four modules answer a question by search. Planner, executor, verifier and generator share one memory.

Graphs, questions and the search are in `hopsearch_graph`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.probes.hopsearch_graph import (
    ENTITIES,
    RELATIONS,
    Entity,
    Graph,
    Question,
    Relation,
    answer,
    ask,
    build_graph,
    search,
)
from palaestra.registry import Fraction, PositiveInt, register

PLANNER, EXECUTOR, VERIFIER, GENERATOR = MODULES = ("planner", "executor", "verifier", "generator")
START, LAST = "start", "last"
STOP, CONTINUE = "stop", "continue"


@dataclass(slots=True)
class State:
    """The state of one episode.

    Attributes:
        module: the module that acts next. turns: how often the planner has acted.
        goal: the entity and relation that the executor shall search.
        walk: relations followed since the planner last chose `start`.
        last: the entity found last. facts: the memory, which has the latest result of each search.
    """

    graph: Graph
    question: Question
    seed: int
    name: str
    last: Entity
    module: str = PLANNER
    turns: int = 0
    goal: tuple[Entity, Relation] | None = None
    walk: list[Relation] = field(default_factory=list)
    facts: dict[tuple[Entity, Relation], Entity] = field(default_factory=dict)

    def reached(self) -> list[Entity]:
        """The entities along the question's relations, from its start as far as the memory has them."""
        path = [self.question.start]
        for relation in self.question.relations:
            if (path[-1], relation) not in self.facts:
                break
            path.append(self.facts[path[-1], relation])
        return path

    @property
    def complete(self) -> bool:
        """Whether the memory has all facts for an answer."""
        return len(self.reached()) > len(self.question.relations)


@register("environment", "flow")
class Flow(KeepsState[State]):
    """Answer questions of several hops with four modules that act in turn on one memory.

    `planner` sets the next sub-goal: `start owner` searches the owner of the entity that the question names, `last
    owner` that of the entity found last. `executor` does the search: `search amber owner`. The result is added to the
    memory. `verifier` says `stop` or `continue`. After `stop`, or after `steps` sub-goals, `generator` answers: `answer
    birch`. All modules see the question and the memory. Each module is an agent and can be trained. The expert has a
    rule for each module; its rule for the verifier errs.

    Args:
        entities, relations, hops: as in `hopsearch`.
        steps: most sub-goals. Higher: more wrong sub-goals can be corrected. Usual: 5.
        noise: probability that a search finds a wrong entity. Usual: 0.
        verifier_noise: probability that the expert's verdict is the wrong one. Higher: more questions end too early,
            and others take too long. Usual: 0.1.

    Reward: 1 to `planner` for the right answer, else 0. After an act that cannot be read, the planner has used up a
    sub-goal, the executor finds nothing, the verifier's verdict is `continue`, and the generator's answer is wrong.

    The first and the last `info` have `stratum`, the number of hops as a text, and the last one has `steps`, the number
    of sub-goals. `vector` and indices of actions are for the planner. The other modules act by text.

    Raises: RecipeError, if the first number of `hops` is larger than the second.
    """

    agents: tuple[str, ...] = MODULES
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "stratum"})

    def __init__(
        self,
        *,
        entities: Annotated[int, pydantic.Field(ge=6, le=len(ENTITIES))] = 40,
        relations: Annotated[int, pydantic.Field(ge=1, le=len(RELATIONS))] = 4,
        hops: tuple[PositiveInt, PositiveInt] = (1, 3),
        steps: PositiveInt = 5,
        noise: Fraction = 0.0,
        verifier_noise: Fraction = 0.1,
    ) -> None:
        Refusals("environment: flow").when_reversed(hops=hops)
        self._params: dict[str, Any] = {"entities": entities, "relations": relations, "hops": list(hops)}
        self._hops, self._steps, self._noise, self._verifier_noise = hops[1], steps, noise, verifier_noise
        self._relations = RELATIONS[:relations]
        self.actions = tuple(f"{source} {name}" for source in (START, LAST) for name in self._relations)
        self.action_count = len(self.actions)
        self.vector_size = 2 * self._hops * relations + self._hops + 2 + steps

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        about, commands, example = {
            "planner": (
                "You say what to search next: the owner of the entity that the question begins with, or found last.",
                {"start RELATION": "", "last RELATION": ""},
                "start owner",
            ),
            "executor": ("You search what the sub-goal says.", {"search ENTITY RELATION": ""}, "search amber owner"),
            "verifier": (
                "You say whether the memory is enough for an answer.",
                {"stop": "it is enough", "continue": "more must be searched"},
                "continue",
            ),
            "generator": ("You answer from the memory.", {"answer ENTITY": ""}, "answer birch"),
        }[agent]
        return write_manual(
            "Four agents answer a question together. `lagoon friend owner` asks for the owner of lagoon's "
            "friend. All see "
            f"the question and the memory of found facts. {about}",
            commands,
            example=example,
            ending="The episode succeeds if the answer is right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` questions. Splits share no seed."""
        return seeded_tasks("flow", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The graph and the question."""
        return as_json(self._drawn(task))

    def _drawn(self, task: Task) -> tuple[Graph, Question]:
        world = {**self._params, **task.params}
        graph = build_graph(world["entities"], world["relations"], task.seed)
        return graph, ask(graph, tuple(world["hops"]), task.seed)

    def reset(self, task: Task) -> StepResult:
        graph, question = self._drawn(task)
        self.state = State(graph, question, task.seed, str(task.seed), question.start)
        return several({PLANNER: self._observe(self.state, "")}, info={"stratum": str(len(question.relations))})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self.state
        module = state.module
        words = self._read(module, actions[module].value)
        info = act_info(module, {}, readable=words is not None)
        if module == GENERATOR:
            won = words == ["answer", state.graph.entities[answer(state.graph, state.question)]]
            info |= {"success": won, "steps": state.turns, "stratum": str(len(state.question.relations))}
            return several({}, rewards={PLANNER: float(won)}, over=MODULES, info=info)
        {PLANNER: self._plan, EXECUTOR: self._execute, VERIFIER: self._verify}[module](state, words or [])
        said = "not understood. " if words is None else ""
        return several({state.module: self._observe(state, said)}, info=info)

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """An action by the module's rule.

        The planner follows the question. The executor searches the sub-goal. The verifier says `stop` if the memory is
        complete, and errs at times. The generator answers with the entity that the memory leads to.
        """
        state = self.state
        names, path, asked = state.graph.entities, state.reached(), state.question.relations
        if agent == PLANNER:
            on_way = state.last in path[:-1] or (state.last == path[-1] and not state.complete)
            hop = path.index(state.last) if on_way else 0
            return choice(f"{LAST if hop else START} {self._relations[asked[hop]]}", self.actions)
        if agent == EXECUTOR:
            entity, relation = state.goal or (state.last, 0)
            return Action(text=f"search {names[entity]} {self._relations[relation]}")
        if agent == VERIFIER:
            errs = random.Random(derive(state.seed, "verifier", state.turns)).random() < self._verifier_noise
            return Action(text=STOP if state.complete != errs else CONTINUE)
        return Action(text=f"answer {names[path[-1] if state.complete else state.last]}")

    # ---- modules ------------------------------------------------------------------------------------------
    def _read(self, module: str, value: Any) -> list[str] | None:
        """The words of an action, or None if the module has no such action."""
        if module == PLANNER and isinstance(value, int | np.integer) and 0 <= value < len(self.actions):
            value = self.actions[int(value)]
        words = value.lower().split() if isinstance(value, str) else []
        entities = self.state.graph.entities
        match module, words:
            case ("planner", [source, relation]) if source in (START, LAST) and relation in self._relations:
                return words
            case ("executor", ["search", entity, relation]) if entity in entities and relation in self._relations:
                return words
            case ("verifier", [verdict]) if verdict in (STOP, CONTINUE):
                return words
            case ("generator", ["answer", entity]) if entity in entities:
                return words
        return None

    def _plan(self, state: State, words: list[str]) -> None:
        state.turns += 1
        if not words:
            state.module = PLANNER if state.turns < self._steps else GENERATOR
            return
        source, relation = words[0], self._relations.index(words[1])
        state.walk = [*(state.walk if source == LAST else []), relation]
        state.goal = (state.last if source == LAST else state.question.start, relation)
        state.module = EXECUTOR

    def _execute(self, state: State, words: list[str]) -> None:
        if words:
            key = (state.graph.entities.index(words[1]), self._relations.index(words[2]))
            seed = derive(state.seed, "executor", state.turns)
            state.last = state.facts[key] = search(state.graph, *key, noise=self._noise, seed=seed)
        state.module = VERIFIER

    def _verify(self, state: State, words: list[str]) -> None:
        over = words == [STOP] or state.turns >= self._steps
        state.module, state.goal = (GENERATOR if over else PLANNER), None

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State, said: str) -> Observation:
        names = state.graph.entities
        asked = " ".join((names[state.question.start], *(self._relations[r] for r in state.question.relations)))
        memory = "".join(f" {names[e]} {self._relations[r]} {names[f]}." for (e, r), f in state.facts.items())
        goal = f" sub-goal: {names[state.goal[0]]} {self._relations[state.goal[1]]}." if state.goal else ""
        text = f"question: {asked}. memory:{memory or ' empty.'} at {names[state.last]}.{goal}"
        return Observation(
            text=f"{said}{text}",
            vector=self._vector(state),
            legal=self._legal(state),
            state_key=f"{state.name}/{state.module}/{state.turns}/{text}",
        )

    def _legal(self, state: State) -> list[Any]:
        """The legal actions: indices for the planner, texts for the other modules."""
        names = state.graph.entities
        if state.module == PLANNER:
            return list(range(len(self.actions)))
        if state.module == VERIFIER:
            return [STOP, CONTINUE]
        if state.module == GENERATOR:
            return [f"answer {name}" for name in names]
        entity = state.goal[0] if state.goal else state.last
        return [f"search {names[entity]} {relation}" for relation in self._relations]

    def _vector(self, state: State) -> np.ndarray:
        """One-hot: relations of the question, relations of the walk, length of the walk, sub-goals so far."""
        lists = np.zeros((2, self._hops, len(self._relations)), np.float32)
        for row, chosen in zip(lists, (state.question.relations, state.walk), strict=True):
            for place, relation in enumerate(chosen[: self._hops]):
                row[place, relation] = 1
        length, turns = np.zeros(self._hops + 2, np.float32), np.zeros(self._steps, np.float32)
        length[min(len(state.walk), self._hops + 1)] = 1
        turns[min(state.turns, self._steps - 1)] = 1
        return np.concatenate([lists.reshape(-1), length, turns])
