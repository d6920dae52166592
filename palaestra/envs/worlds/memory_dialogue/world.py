"""The environment `memory_dialogue`: its tasks, roles, observations, rewards and expert.

Everything random comes from the task's seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.answers import answer_words, token_f1
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.memory_dialogue.actions import ANSWER, OPERATIONS, SELECT, Operation, Style, read, write
from palaestra.envs.worlds.memory_dialogue.bank import Bank, Entry, mentioned, recall
from palaestra.envs.worlds.memory_dialogue.experts import answer_from, choices, maintain, selection
from palaestra.envs.worlds.memory_dialogue.story import KINDS, Event, Kind, Plan, Question, Story, build
from palaestra.envs.worlds.memory_dialogue.topics import ATTRIBUTES, PEOPLE, THEN, Wording
from palaestra.registry import Fraction, PositiveInt, register

PLAYER, MANAGER, ANSWERER = "player", "manager", "answerer"
AGENTS = {"one": (PLAYER,), "two": (MANAGER, ANSWERER), "manager": (MANAGER,), "answerer": (ANSWERER,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. It is frozen, so a snapshot needs no copy.

    Attributes:
        place: number of sentences heard. asked: number of questions done.
        chosen: numbers of the entries that were selected for the present question. None before a selection.
        said: the error of the last act. scores: of the answers so far. right: whether each answer was right.
    """

    story: Story
    seed: int
    bank: Bank
    place: int = 0
    asked: int = 0
    chosen: tuple[int, ...] | None = None
    said: str = ""
    scores: tuple[float, ...] = ()
    right: tuple[bool, ...] = ()

    @property
    def event(self) -> Event | None:
        """The present sentence. None when all were heard."""
        return self.story.events[self.place] if self.place < len(self.story.events) else None

    @property
    def question(self) -> Question | None:
        """The present question. None while sentences are left, and after the last question."""
        return self.story.questions[self.asked] if self.event is None and not self.over else None

    @property
    def over(self) -> bool:
        """Whether all questions are done."""
        return self.asked == len(self.story.questions)


@register("environment", "memory_dialogue")
class MemoryDialogue(KeepsState[State]):
    """Keep a memory of a long talk, sentence by sentence, then answer questions from the memory alone.

    Facts about people come up, add up (`anna adopted another dog, fido`), change and end. After each sentence the agent
    does one operation: `add anna dog rex`, `update 2 anna dog rex fido`, `delete 2` or `noop`. Then come the questions:
    `select 1 3` shows only these entries, and `answer rex fido` answers. The talk itself is not shown again.

    Args:
        parts: number of parts of the talk. Higher: longer episodes. Usual: 3.
        facts: number of sentences in each part. Higher: longer episodes. Usual: 4.
        people: number of people in the talk, 1–6. Higher: more entries at the same time. Usual: 2.
        attributes: number of attributes of each person, 1–6. Higher: more entries at the same time. Usual: 4.
        questions: number of questions at the end. Higher: less luck. Usual: 3.
        kinds: kinds of questions, mixed evenly: "single" (one fact), "two" (two facts), "time" (what was true before or
            after something else), "unknown" (never said, or no longer true; the answer is `unknown`). If a talk has
            nothing for a kind, another kind is asked.
        repeats: share of sentences that repeat what is true. Usual: 0.1.
        chatter: share of sentences that are about nobody. Higher: more sentences to ignore. Usual: 0.1.
        capacity: most entries of the memory, 2 or more. No more topics than that, such as anna's home, have a value at
            the same time. Lower: an agent that only adds fills its memory sooner.
        entry_words: most words of an entry, 8 or more. Further words are cut off.
        shown: number of entries in view: those nearest to the sentence or the question. 0: all.
        select: whether the agent may select entries before an answer.
        view: "fact": one sentence at a time is shown. "part": with it, all sentences of its part.
        wording: "short" notes, "plain" sentences, or "varied" sentences: three for each event.
        renamed: other people and values. What happens stays the same.
        noise: probability that a sentence is misheard, with another value. A later repetition may correct it.
        style: "words": as above. "calls": `UPDATE(2, "anna dog rex fido")`.
        score: "em": an answer needs the right words, in any order. "f1": F1 of its tokens.
        roles: "one": an agent, `player`, does everything. "two": `manager` keeps the memory, and `answerer` answers.
            "manager" or "answerer": a script plays the other of the two.

    Reward: the mean score of the answers, paid in parts after each answer. With two roles, both get it. `success`: all
    answers are right. An act that cannot be read or done changes nothing, but the sentence is over, or the chance to
    select. A further act that is not an answer gives the question up.

    A step's `info` has `operation` (the kind of the operation), `wanted` (the kind that keeps the memory right),
    `process`, `executable` and, for answers, `question` (the kind of the question). `process` is 1 for an operation of
    the wanted kind after which the memory is right about the sentence's topic and no worse elsewhere; for a selection,
    1 if it has exactly the entries about the question; for an answer, its score. The episode's `info` has `entries`
    (size of the memory), `score` and `stratum` (the kinds of its questions).
    """

    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")

    provides = frozenset({"state_key", "outcome", "process", "executable", "stratum"})

    def __init__(
        self,
        *,
        parts: PositiveInt = 3,
        facts: PositiveInt = 4,
        people: Annotated[int, pydantic.Field(ge=1, le=len(PEOPLE))] = 2,
        attributes: Annotated[int, pydantic.Field(ge=1, le=len(ATTRIBUTES))] = 4,
        questions: PositiveInt = 3,
        kinds: tuple[Kind, ...] = KINDS,
        repeats: Fraction = 0.1,
        chatter: Fraction = 0.1,
        capacity: Annotated[int, pydantic.Field(ge=2, le=64)] = 6,
        entry_words: Annotated[int, pydantic.Field(ge=8)] = 12,
        shown: Annotated[int, pydantic.Field(ge=0)] = 0,
        select: bool = True,
        view: Literal["fact", "part"] = "fact",
        wording: Wording = "plain",
        renamed: bool = False,
        noise: Fraction = 0.0,
        style: Style = "words",
        score: Literal["em", "f1"] = "em",
        roles: Literal["one", "two", "manager", "answerer"] = "one",
    ) -> None:
        _refuse_impossible(kinds, repeats, chatter)
        self._params: dict[str, Any] = {
            "facts": parts * facts,
            "people": people,
            "attributes": attributes,
            "capacity": capacity,
            "questions": questions,
            "kinds": list(kinds),
            "repeats": repeats,
            "chatter": chatter,
            "noise": noise,
            "wording": wording,
            "renamed": renamed,
        }
        self.agents: tuple[str, ...] = AGENTS[roles]
        self._roles, self._part, self._view = roles, facts, view
        self._words, self._shown, self._select, self._style = entry_words, shown, select, style
        self._f1 = score == "f1"

    def instruction(self, agent: str) -> str:
        """The rules for an agent, with the operations of its role."""
        words = self._style == "words"
        keeps = {
            "add TEXT": "add an entry to the memory",
            "update NUMBER TEXT": "replace an entry",
            "delete NUMBER": "remove an entry that is no longer true",
            "noop": "change nothing, if the sentence says nothing new",
        }
        answers = {"select NUMBER NUMBER": "once before an answer, show only these entries"} if self._select else {}
        answers |= {"answer WORDS": "answer the question with nothing but the words asked for"}
        if not words:
            keeps = {"ADD(\"TEXT\")": keeps["add TEXT"], "UPDATE(NUMBER, \"TEXT\")": keeps["update NUMBER TEXT"],
                     "DELETE(NUMBER)": keeps["delete NUMBER"], "NOOP": keeps["noop"]}  # fmt: skip
            answers = {"select(NUMBER, NUMBER)": answers["select NUMBER NUMBER"]} if self._select else {}
            answers |= {'answer("WORDS")': "answer the question with nothing but the words asked for"}
        keeping = agent == self.agents[0] and self._roles != ANSWERER
        answering = agent == self.agents[-1] and self._roles != MANAGER
        example = (
            ("add anna dog rex" if words else 'ADD("anna dog rex")')
            if keeping
            else ("answer rex" if words else 'answer("rex")')
        )
        told = ["You keep a memory of a talk about people."]
        if keeping:
            told.append(
                "You read one sentence at a time and change the memory, so that it always has what is true now and "
                f"what was true before. It has room for {self._params['capacity']} entries of at most "
                f"{self._words} words. "
                "The talk is not shown again."
            )
        if answering:
            told.append("Questions come at the end. Answer them from the memory. If it does not say, answer unknown.")
        return write_manual(
            " ".join(told),
            (keeps if keeping else {}) | (answers if answering else {}),
            example=example,
            ending="The episode succeeds if all answers are right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` talks. Splits never share a seed."""
        return seeded_tasks("memory_dialogue", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The sentences of the talk, and the questions with their answers."""
        story = build(_plan({**self._params, **task.params}), task.seed)
        return as_json((story.events, story.questions))

    def difficulty(self, task: Task) -> float:
        """Number of sentences that change what is true."""
        events = build(_plan({**self._params, **task.params}), task.seed).events
        return float(sum(event.happening not in ("again", "chatter") for event in events))

    def reset(self, task: Task) -> StepResult:
        story = build(_plan({**self._params, **task.params}), task.seed)
        capacity = {**self._params, **task.params}["capacity"]
        state = State(story=story, seed=task.seed, bank=Bank(capacity=capacity, words=self._words))
        while self._roles == ANSWERER and state.event is not None:
            bank, _ = state.bank.apply(maintain(state.bank, story, state.place))
            state = replace(state, bank=bank, place=state.place + 1)
        self.state = state
        return several({self._actor(state): self._observe(state)}, info=_standing(state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        agent = self._actor(before)
        given = read(str(actions[agent].value), self._style)
        if before.event is not None:
            state, readable, told = self._remember(before, given)
        else:
            state, readable, told = self._respond(before, given)
        while self._roles == MANAGER and state.question is not None:  # the script answers at once
            state = self._answered(state, self._scripted(state))
        self.state = state
        gained = sum(state.scores) - sum(before.scores)
        rewards = dict.fromkeys(self.agents, gained / len(state.story.questions)) if gained else {agent: 0.0}
        return several(
            {} if state.over else {self._actor(state): self._observe(state)},
            rewards=rewards,
            over=self.agents if state.over else (),
            info=act_info(agent, told, readable=readable) | _standing(state),
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The operation that keeps the memory true to everything heard, or repairs it. The answer uses only the
        memory."""
        return Action(text=write(self._best(self.state), self._style))

    # ---- playing ------------------------------------------------------------------------------------------

    def _actor(self, state: State) -> str:
        return self.agents[0] if state.event is not None else self.agents[-1]

    def _best(self, state: State) -> Operation:
        if state.event is not None:
            return maintain(state.bank, state.story, state.place)
        if self._select and state.chosen is None and (wanted := self._about(state)):
            return Operation(kind=SELECT, ids=wanted)
        return self._scripted(state)

    def _scripted(self, state: State) -> Operation:
        """The answer that the entries in view give."""
        assert state.question is not None
        return Operation(kind=ANSWER, text=answer_from(self._in_view(state), state.question, state.story.topics))

    def _about(self, state: State) -> tuple[int, ...]:
        """Numbers of the entries in view that the question is about."""
        assert state.question is not None
        return selection(self._in_view(state), state.question, state.story.topics)

    def _remember(self, state: State, given: Operation | None) -> tuple[State, bool, dict[str, Any]]:
        """The state after an operation on the memory, whether the operation could be read, and its `info`."""
        wanted = maintain(state.bank, state.story, state.place)
        readable = given is not None and given.kind in OPERATIONS
        bank, fault = state.bank.apply(given) if readable and given is not None else (state.bank, "cannot read that")
        kind = given.kind if readable and given is not None else "none"
        good = not fault and kind == wanted.kind and _no_worse(state, bank)
        state = replace(state, bank=bank, place=state.place + 1, said=f"error: {fault}. " if fault else "")
        told = {"operation": kind, "wanted": wanted.kind, "process": float(good), "executable": float(not fault)}
        return state, readable, told

    def _respond(self, state: State, given: Operation | None) -> tuple[State, bool, dict[str, Any]]:
        """The state after a selection or an answer, whether it could be read, and its `info`."""
        if given is not None and given.kind == ANSWER:
            after, question = self._answered(state, given), state.question
            assert question is not None
            return after, True, {"process": after.scores[-1], "executable": 1.0, "question": question.kind}
        in_view = {number for number, _ in self._in_view(state)}
        fault, chosen = "cannot read that", tuple[int, ...]()
        if given is not None and given.kind == SELECT and self._select:
            strange = [number for number in given.ids if number not in in_view]
            fault = "select only once" if state.chosen is not None else f"no entry {strange[0]}" if strange else ""
            chosen = () if fault else tuple(sorted(given.ids))
        good = not fault and chosen == tuple(sorted(self._about(state)))
        told = {"process": float(good), "executable": float(not fault)}
        if state.chosen is not None or not self._select:
            after = self._answered(state, Operation(kind=ANSWER))
        else:
            after = replace(state, chosen=chosen, said=f"error: {fault}. " if fault else "")
        return after, fault != "cannot read that", told

    def _answered(self, state: State, given: Operation) -> State:
        assert state.question is not None
        right = [word for text in state.question.answer for word in answer_words(text)]
        words = [word for word in answer_words(given.text) if word not in ("and", THEN)]
        exact = sorted(words) == sorted(right)
        score = token_f1(" ".join(words), [" ".join(right)]) if self._f1 else float(exact)
        scores, all_right = (*state.scores, score), (*state.right, exact)
        return replace(state, asked=state.asked + 1, chosen=None, said="", scores=scores, right=all_right)

    # ---- observations -------------------------------------------------------------------------------------
    def _in_view(self, state: State) -> tuple[Entry, ...]:
        """The entries that are shown: the selected ones, else those related to the sentence or the question."""
        if state.chosen:
            return tuple(entry for entry in state.bank.entries if entry[0] in state.chosen)
        if not self._shown:
            return state.bank.entries
        words: list[str] = []
        if state.event is not None:
            words = [state.event.text, state.event.topic.name if state.event.topic is not None else ""]
        elif state.question is not None:  # with the topics, since a good retriever would find `home` for "live"
            words = [state.question.text, *(topic.name for topic in state.question.topics)]
        return state.bank.related(" ".join(words), self._shown)

    def _observe(self, state: State) -> Observation:
        entries = " ".join(f"{number}: {text}." for number, text in self._in_view(state)) or "nothing."
        if state.event is not None:
            first = state.place // self._part * self._part
            heard = ". ".join(event.text for event in state.story.events[first : first + self._part])
            part = f"part {state.place // self._part + 1}: {heard}. " if self._view == "part" else ""
            asked = f"{part}fact: {state.event.text}."
        else:
            asked = f"question: {state.question.text if state.question else ''}"
        bank = ";".join(f"{number} {text}" for number, text in state.bank.entries)
        return Observation(
            text=f"{state.said}{asked} memory: {entries}",
            legal=self._legal(state),
            state_key=f"{state.seed}/{state.place}.{state.asked}/{state.chosen}/{bank}",
        )

    def _legal(self, state: State) -> list[str]:
        """Operations with the words of the sentence, or selections of one entry and answers with words of entries."""
        found = choices(self._in_view(state), state.event, state.story.topics)
        if state.event is None and (not self._select or state.chosen is not None):
            found = [one for one in found if one.kind == ANSWER]
        return sorted({write(one, self._style) for one in [*found, self._best(state)]})


# ---- parameters, info and checks --------------------------------------------------------------------------
def _plan(world: Mapping[str, Any]) -> Plan:
    return Plan(**{**world, "kinds": tuple(world["kinds"])})


def _no_worse(state: State, bank: Bank) -> bool:
    """Whether the bank is right about the sentence's topic and about all topics that it was right about before, and has
    no more entries without a topic."""
    story, believed = state.story, state.story.heard[state.place + 1]
    topic = state.event.topic if state.event is not None else None
    was, now = (recall(one.entries, story.topics) for one in (state.bank, bank))
    for other in story.topics:
        right = believed.get(other, ())
        if (other is topic or was.get(other, ()) == right) and now.get(other, ()) != right:
            return False
    junk = [sum(not mentioned(text, story.topics) for _, text in one.entries) for one in (state.bank, bank)]
    return junk[1] <= junk[0]


def _standing(state: State) -> dict[str, Any]:
    """The `info` of the episode so far."""
    return {
        "success": state.over and all(state.right),
        "entries": len(state.bank),
        "score": sum(state.scores) / len(state.story.questions),
        "stratum": "+".join(sorted({question.kind for question in state.story.questions})),
    }


def _refuse_impossible(kinds: tuple[Kind, ...], repeats: float, chatter: float) -> None:
    refuse = Refusals("environment: memory_dialogue")
    refuse.when_empty(KINDS, kinds=kinds)
    refuse.when(
        repeats + chatter >= 1,
        f"`repeats` is {repeats:g} and `chatter` is {chatter:g}: no sentence would say anything new.",
        "Keep their sum below 1.",
    )
