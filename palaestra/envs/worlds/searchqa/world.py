"""The environment `searchqa`: its tasks, observations, rewards and expert.

Everything random comes from the task's seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.answers import answer_words, exact_match, holds_answer, token_f1
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.searchqa.actions import (
    ANSWER,
    OPEN,
    SEARCH,
    Act,
    Style,
    parts_of,
    read,
    read_call,
    tools_for,
    write,
)
from palaestra.envs.worlds.searchqa.episode import (
    AGENT,
    State,
    corpus_of,
    failed,
    opened,
    place,
    queries_for,
    searched,
    standing,
    tell,
)
from palaestra.envs.worlds.searchqa.graph import FEWEST, MOST, RELATIONS
from palaestra.envs.worlds.searchqa.passages import WORDINGS, Corpus
from palaestra.envs.worlds.searchqa.questions import Question, ask, count_of, fill_in
from palaestra.registry import Fraction, PositiveInt, register

SCORES = {"em": exact_match, "f1": token_f1, "substring": holds_answer}
Few = Annotated[int, pydantic.Field(ge=1, le=4)]


@register("environment", "searchqa", ignores_if={"book=open": ("known",)}, extra="tools", modules=("bm25s",))
class SearchQA(KeepsState[State]):
    """Answer questions of one to four hops, or fill hidden spans of a passage, by searching a corpus of passages.

    A task has a random graph of people, towns, firms, works and years. A passage about each of them tells its facts, in
    one of three wordings. `question: anna friend home.` asks for the home of anna's friend. `search anna friend` shows
    the best passages (BM25), cut to whole sentences from the best match on. `open d3` shows a whole passage. `answer
    elm` ends the episode. Some passages are about other things of the same name, such as the ship anna.

    Args:
        entities: number of people, towns, firms and works together, 8–64. Higher: more passages, rarer lucky guesses.
            Usual: 24.
        relations: number of relations, 3–10. The last two lead to years. Higher: more words, longer passages.
            Usual: 10.
        questions: "hops" asks along the facts of the graph. "masked" hides spans of a passage; a search still finds the
            whole passage.
        hops: fewest and most hops, 1–4. Higher: more searches in a row must be right. Usual: 1 to 3.
        masks: fewest and most hidden spans, 1–4. A passage that has fewer hides them all. Higher: harder.
        graphs: 0: a new graph for every seed. n: one of n fixed graphs, whose search index is kept.
        held_out: with fixed graphs, "questions": training and evaluation share the graphs, but no question. "graphs":
            they share no graph either.
        distractors: share of entities with a namesake. Higher: more passages that only look right. Usual: 0.25.
        wordings: number of wordings of passages, 1–3. Higher: passages contain the question's words more rarely.
            Usual: 3.
        renamed: other names and other words for relations. The facts stay the same.
        passages: number of passages that a search shows. Higher: longer prompts. Usual: 3.
        passage_words: about how many words of each passage a search shows. 0: the whole passage. Lower: the agent must
            open some passages. Usual: 20.
        book: which facts `corpus_texts()` gives, to train a model on them beforehand. "open": none. "part": the share
            `known` of the facts. "closed": the same share, and there is no search. "part" and "closed" need fixed
            graphs that training and evaluation share.
        known: share of the facts, see `book`.
        style: "words": as above. "tags": the agent must write `<think> … </think> <search> … </search>`. "calls": the
            commands are tools, `search(query)`, `open(id)` and `answer(text)`, which a chat template declares where the
            role says `tools: {native: true}`; each turn has one call. With tags and calls, questions are full
            sentences.
        notes: what an observation repeats from earlier turns: "none", the "queries", or the facts "found" that the
            question needs. With "none" a policy must see its own history, and with `style: calls` only the first
            observation has the question.
        score: "em": exact match. "f1": F1 of tokens. "substring": the answer contains a right answer. Aliases count as
            right.
        reader: the agent only decides when to stop, with an empty `answer`, and a scripted reader answers. The reader
            is right if the agent has read all facts of the question.
        reader_error: probability that the reader is wrong nevertheless.
        noise: probability that a search goes wrong: its best passage is missing, or another passage replaces it.
        max_turns: turns until the episode is cut off. Usual: 8.

    Reward: the score of the final answer; with hidden spans, the mean of their scores. `success`: all answers match
    exactly, or under `score: substring` contain a right answer. The answer to an act that cannot be read, or to the
    opening of a passage that does not exist, begins with `error:`. With `style: calls` it says what is wrong with the
    call. With `passage_words: 0` there is no tool `open`, because searches show whole passages.

    A step's `info` has `tool_call`, `tool_error`, `executable`, `format` (1 for the asked form), `process` (1 for a
    search or an opening that showed a new fact that the question needs, else 0), `entities` (share of the question's
    entities that the agent has written itself) and `due` (the next useful search, which no policy sees). The episode's
    `info` has `searches`, `calls`, `errors`, `gold_hops` (facts that the question needs), `found_hops` (those that were
    read), `known_hops` (those that a model may know) and `stratum` (number of hops or spans).
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    provides = frozenset(
        {"state_key", "outcome", "process", "executable", "tool_call", "tool_error", "format", "entities", "stratum"}
    )

    def __init__(
        self,
        *,
        entities: Annotated[int, pydantic.Field(ge=FEWEST, le=MOST)] = 24,
        relations: Annotated[int, pydantic.Field(ge=3, le=len(RELATIONS))] = len(RELATIONS),
        questions: Literal["hops", "masked"] = "hops",
        hops: tuple[Few, Few] = (1, 3),
        masks: tuple[Few, Few] = (1, 4),
        graphs: Annotated[int, pydantic.Field(ge=0)] = 0,
        held_out: Literal["questions", "graphs"] = "questions",
        distractors: Fraction = 0.25,
        wordings: Annotated[int, pydantic.Field(ge=1, le=WORDINGS)] = WORDINGS,
        renamed: bool = False,
        passages: PositiveInt = 3,
        passage_words: Annotated[int, pydantic.Field(ge=0)] = 20,
        book: Literal["open", "part", "closed"] = "open",
        known: Fraction = 0.6,
        style: Style = "words",
        notes: Literal["none", "queries", "found"] = "found",
        score: Literal["em", "f1", "substring"] = "em",
        reader: bool = False,
        reader_error: Fraction = 0.0,
        noise: Fraction = 0.0,
        max_turns: PositiveInt = 8,
    ) -> None:
        _refuse_impossible(hops=hops, masks=masks, graphs=graphs, held_out=held_out, book=book, reader=reader)
        self._params: dict[str, Any] = {
            "entities": entities,
            "relations": relations,
            "questions": questions,
            "counts": list(hops if questions == "hops" else masks),
            "graphs": graphs,
            "held_out": held_out,
            "distractors": distractors,
            "wordings": wordings,
            "renamed": renamed,
            "known": known if book != "open" else 0.0,
            "noise": noise,
        }
        self._passages, self._words, self._closed = passages, passage_words, book == "closed"
        self._style, self._notes, self._score = style, notes, SCORES[score]
        self._whole = holds_answer if score == "substring" else exact_match
        self._reader, self._reader_error, self._max_turns = reader, reader_error, max_turns
        kinds = (ANSWER,) if self._closed else (SEARCH, OPEN, ANSWER) if passage_words else (SEARCH, ANSWER)
        self._box = tools_for(kinds, reader=reader) if style == "calls" else None

    def instruction(self, agent: str) -> str:
        """The rules, and the acts of `style: words`. Those of `style: tags` stand in the observation's own
        instruction, and those of `style: calls` are declared as tools."""
        what = self._about()
        several = " Answers to several hidden words are written in order, with `;` between them."
        ending = f"The answer ends the episode. It succeeds if it is right.{turn_limit(self._max_turns)}" + several * (
            self._params["questions"] != "hops"
        )
        if self._style == "tags":
            return write_manual(what, ending=ending)
        if self._box is not None:
            return write_manual(f"{what} Make one call in each turn.", ending=ending)
        searches = {"search WORDS": "show the best passages", "open ID": "show a whole passage, such as d3"}
        reads = "stop: a reader answers from the passages that you have seen"
        answer = {"answer": reads} if self._reader else {"answer WORDS": "the answer and nothing else, mostly one word"}
        return write_manual(
            what,
            (searches if not self._closed else {}) | answer,
            example="search anna friend" if not self._closed else "answer elm",
            ending=ending,
        )

    def _about(self) -> str:
        """What the questions are, and how they are answered."""
        if self._closed:
            return "You answer questions about people, towns, firms and works from what you know."
        if self._params["questions"] != "hops":
            return "You fill in the hidden words of a passage with the help of a search engine."
        asked, others = "A question such as `anna friend home` asks for the home of anna's friend:", True
        if self._box is not None:  # questions are full sentences, and each prompt pays for every word
            asked, others = "For the home of anna's friend,", self._params["distractors"] > 0
        return (
            f"You answer questions with a search engine. {asked} find the friend first, then search for the friend's "
            f"home.{' Other passages may be about something else of the same name.' * others}"
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` questions. Splits never share a seed."""
        return seeded_tasks("searchqa", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The graph and the question."""
        corpus, question = self._drawn(task)
        return as_json((corpus.graph, question))

    def difficulty(self, task: Task) -> float:
        """Number of hops or of hidden spans."""
        return float(count_of(tuple({**self._params, **task.params}["counts"]), task.seed))

    def corpus_texts(self) -> list[str]:
        """The passages of the fixed graphs of training, with only the sentences that a model may know."""
        texts, share = [], self._params["known"]
        for number in range(self._params["graphs"]):
            corpus = corpus_of(self._params, number)
            for passage in corpus.passages.values():
                told = [sentence.text for sentence in passage.sentences if corpus.knows(sentence.fact, share)]
                texts += [" ".join([f"{passage.title}:", *told])] if told else []
        return texts

    def _drawn(self, task: Task) -> tuple[Corpus, Question]:
        world = {**self._params, **task.params}
        number, half = place(world, task.seed)
        corpus, count = corpus_of(world, number), count_of(tuple(world["counts"]), task.seed)
        if world["questions"] == "hops":
            return corpus, ask(corpus.graph, count, task.seed, half=half)
        return corpus, fill_in(corpus, count, task.seed, half=half)

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        corpus, question = self._drawn(task)
        if not self._closed:
            corpus.prepare()
        self.state = State(corpus=corpus, question=question, seed=task.seed, noise=world["noise"], known=world["known"])
        return single(AGENT, self._observe(self.state), info=standing(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before, given = self.state, str(actions[AGENT].value)
        act, formed, fault = self._read(actions[AGENT])
        state = replace(before, turn=before.turn + 1, words=f"{before.words} {given}")
        over, scores = act is not None and act.kind == ANSWER, [0.0]
        if act is None:
            state = failed(state, fault)
        elif act.kind == ANSWER:
            scores = [self._score(*pair) for pair in self._answered(state, act)]
        elif act.kind == OPEN:
            state = opened(state, act.text)
        else:
            state = searched(state, act.text, self._passages, self._words)
        self.state = state
        info = standing(state)
        if over and act is not None:
            info["success"] = all(self._whole(*pair) == 1 for pair in self._answered(state, act))
        return single(
            AGENT,
            None if over else self._observe(state),
            reward=sum(scores) / len(scores),
            over=over,
            cut=state.turn >= self._max_turns,
            act=tell(before, state, act, formed),
            readable=act is not None,
            info=info,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next search or opening for a fact that was not read yet. After the last fact, the answer.

        The expert knows which facts the question needs, but uses a name only after it has read it. Without a search
        engine it answers at once.
        """
        return Action(text=write(self._next(self.state), self._style))

    # ---- playing ------------------------------------------------------------------------------------------
    def _read(self, action: Action) -> tuple[Act | None, bool, str]:
        """The act that an action means, whether it has the asked form, and the fault of one that cannot be read."""
        if self._style == "calls":
            assert self._box is not None
            act = read_call(action, self._box)
            return (None, False, act) if isinstance(act, str) else (act, True, "")
        return *read(str(action.value), self._style, alone=self._closed, reader=self._reader), "cannot read that"

    def _next(self, state: State) -> Act:
        corpus, found = state.corpus, state.found
        due = next((fact for fact in state.question.gold if fact not in found), None)
        if due is None or self._closed:
            return Act(kind=ANSWER, text="" if self._reader else self._right(state))
        queries = queries_for(corpus, due)
        fresh = [query for query in queries if query not in state.queries]
        own = corpus.about(due[0]).id
        if len(fresh) < len(queries) and own in state.seen:
            return Act(kind=OPEN, text=own)
        return Act(kind=SEARCH, text=fresh[0] if fresh else queries[state.turn % len(queries)])

    def _right(self, state: State) -> str:
        answers = [right[0] for right in state.question.answers]
        return (" " if self._style == "words" else "; ").join(answers)

    def _answered(self, state: State, act: Act) -> list[tuple[str, tuple[str, ...]]]:
        """The given answer and the right answers, for each thing that the question asks for."""
        right = state.question.answers
        if not self._reader:
            return list(zip(parts_of(act.text, len(right)), right, strict=True))
        read_all = len(state.found) == len(state.question.gold)
        errs = derive(state.seed, "reader") / 2**63 < self._reader_error
        return [(one[0] if read_all and not errs else "", one) for one in right]

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        plain, tagged = self._style == "words", self._style == "tags"
        result = f"<information> {state.said} </information>" if tagged and state.said else state.said
        lines = [state.question.short if plain else state.question.long, self._noted(state), result]
        if self._box is not None and self._notes == "none" and state.turn:
            lines = [result]  # the result of a call, and nothing else
        key = derive(0, *sorted(state.read), *sorted(state.seen))
        return Observation(
            text=(" " if plain else "\n").join(line for line in lines if line),
            legal=self._legal(state),
            state_key=f"{state.corpus.graph.seed}/{state.question.short}/{key:x}",
            instruction=_instruction(self._closed, self._reader) if tagged else None,
            tools=None if self._box is None else self._box.declarations,
        )

    def _noted(self, state: State) -> str:
        if self._notes == "queries" and state.queries:
            return f"searched: {', '.join(state.queries)}."
        if self._notes == "found" and state.found:
            return f"found: {', '.join(state.corpus.graph.spell(fact) for fact in state.found)}."
        return ""

    def _legal(self, state: State) -> list[str]:
        """Searches for the names that were read, openings of the passages seen, and the read names as answers."""
        graph, question = state.corpus.graph, state.question
        if self._closed:
            acts = [Act(kind=ANSWER, text=name) for name in graph.names]
            own = Act(kind=ANSWER, text=self._right(state))
            return [write(act, self._style) for act in ([*acts, own] if len(question.answers) > 1 else acts)]
        passages = state.corpus.passages
        texts = [passages[doc].sentences[number].text for doc, number in state.read]
        told = {word for text in [*texts, *(passages[doc].title for doc in state.seen)] for word in answer_words(text)}
        named = [e for e, name in enumerate(graph.names) if name == question.start or name in told]
        queries = (f"{graph.names[e]} {word}" for e in named for word in (*question.relations, graph.kinds[e]))
        acts = [Act(kind=SEARCH, text=query) for query in queries]
        if self._box is None or OPEN in self._box.tools:
            acts += [Act(kind=OPEN, text=doc) for doc in sorted(state.seen, key=lambda doc: int(doc[1:]))]
        if self._reader:
            acts.append(Act(kind=ANSWER))
        else:
            acts += [Act(kind=ANSWER, text=graph.names[entity]) for entity in named]
            if len(question.answers) > 1 and len(state.found) == len(question.gold):
                acts.append(Act(kind=ANSWER, text=self._right(state)))
        return list(dict.fromkeys(write(act, self._style) for act in acts))


# ---- texts and options ----------------------------------------------------------------------------------
def _instruction(closed: bool, reader: bool) -> str:
    if closed:
        return "think in <think> … </think>, then answer from what you know: <answer> … </answer>."
    answer = "stop with an empty <answer> </answer>" if reader else "end with <answer> … </answer>"
    return (
        "think in <think> … </think>, then act once: <search> words </search> finds passages, "
        f"<open> d3 </open> shows one as a whole; {answer}."
    )


def _refuse_impossible(
    *,
    hops: tuple[int, int],
    masks: tuple[int, int],
    graphs: int,
    held_out: str,
    book: str,
    reader: bool,
) -> None:
    refuse = Refusals("environment: searchqa")
    refuse.when_reversed(hops=hops, masks=masks)
    refuse.when(
        book != "open" and (not graphs or held_out == "graphs"),
        f"with `book: {book}` a model knows facts of fixed graphs, and training and evaluation must share these. Found "
        f"`graphs: {graphs}` and `held_out: {held_out}`.",
        "Set `graphs` to 1 or more and `held_out: questions`.",
    )
    refuse.when(
        book == "closed" and reader,
        "`reader: true` answers from passages that were read, and with `book: closed` nothing can be read.",
        "Set `reader: false`, or choose another `book`.",
    )
