"""The environment `tool_tasks`: an agent answers questions with tools."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.leniency import stripped
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import started
from palaestra.envs.worlds.tool_tasks.episode import ANSWER, Found, Solver, State, answer_call, key_of
from palaestra.envs.worlds.tool_tasks.goods import WORDS, Problem, Wording, make_problem
from palaestra.envs.worlds.tool_tasks.matching import Match, equals, matches
from palaestra.envs.worlds.tool_tasks.questions import Question, read_questions
from palaestra.envs.worlds.tool_tasks.requests import HowAsked, Wordings, describe
from palaestra.envs.worlds.tool_tasks.supply import QUICK, Spec, Supply
from palaestra.errors import ContractError, InvalidData
from palaestra.registry import Files, Fraction, PositiveInt, register
from palaestra.tools import Parsed, Tool, Toolbox, ToolError, ToolResult
from palaestra.tools.formats import format_of

AGENT = "player"
NAME = "environment tool_tasks"
SHOWN = 120  # most characters of a call that are repeated beside its result
Range = tuple[PositiveInt, PositiveInt]


@register("environment", "tool_tasks", ignores_if={"request=names": ("wordings",)}, extra="tools")
class ToolTasks:
    """Answer questions with tools: built-in ones, functions of your own, MCP servers.

    Without a file of questions, each question is a sum over a small table, such as
    `( apple price + drum weight ) * jar stock`. `lookup apple price` finds a number, `calculator ( 12 + 7 ) * 40`
    calculates, and `answer 760` ends the episode. Several calls in one act run at the same time. If a call fails, the
    agent reads a text that begins with "error:", and the episode continues.

    Args:
        questions: path of a JSONL file, from the recipe's folder or the working folder. Each line has `question` and
            `answer`, or a list of `aliases`. It may have `split` (without it, a fifth of the questions is held out),
            and `calls`, which the expert makes before it answers. None: the built-in sums.
        tools: names (`calculator`, `search`, `sql`, `python`, and `lookup` for the built-in table),
            `file.py:function`, or one of them with options: `{search: {documents: texts.jsonl}}`,
            `{sql: {database: shop.db}}`, `{mcp: {command: [python, server.py]}}`, `{mcp: {url: …}}`. Each has the
            option `cost`.
        format: how calls and the answer are written: "json", "tagged", "code" or "words".
        manual: whether an instruction before the first observation explains the tools and how to call them.
        memory: whether each observation repeats the question and all results. False: it has only what is new, for
            contexts that keep the history and for long results.
        refer: whether `r1` in an argument stands for the first result, `r2` for the second, and so on. Models that
            copy badly need it.
        match: "exact" compares words and numbers. "math" also accepts expressions that are mathematically equal.
        facts: fewest and most numbers in a built-in sum. Higher: more acts in a row must be right. Usual: 2 to 3.
        names: lines of the built-in table. Higher: more to choose from. Usual: 6.
        largest: largest number in the table. Higher: the sums are harder without a calculator. Usual: 50.
        wording: the nouns of the table, "goods" or "trees". The sums are the same.
        request: "names" writes the built-in sum with the words of the table. "described" asks for it in everyday
            English, step by step, and never in the words of the table, which stand behind the question. Tools need
            these words, so the agent must understand what is meant. It is meant for pretrained models.
        wordings: "held_out": the split "train" has half of all descriptions and sentences, and the others have the
            other half. "shared": all splits have all of them. Only with `request: described`.
        noise: probability that a call fails. The same call may work in a later turn. Higher: longer episodes.
        max_calls: most calls of an episode. A further call ends it (`max_tool_calls`). None: no limit.
        max_faults: number of unreadable acts that ends the episode (`parse_error`). None: no limit.
        max_chars: most characters of one result. A longer one is cut, with a note. Higher: longer prompts. Usual: 400
            to 4000.
        max_turns: turns until the episode is cut off. The expert needs `facts` + 2 for a built-in sum. Usual: 8.

    Reward: 1 for the right answer, else 0.

    A step's `info` has `tool_call` and `tool_error`: the number of calls in the act, and how many of them failed. An
    unreadable act is one call that failed. For the episode so far it has `calls`, `cost` and `faults`: the number of
    failed calls by cause (unknown, arguments, raised, timeout, budget, died), and of unreadable acts (unreadable).
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "tool_call", "tool_error"})

    def __init__(
        self,
        *,
        questions: Annotated[str | None, Files()] = None,
        tools: tuple[Spec, ...] = ("lookup", "calculator"),
        format: str = "words",
        manual: bool = True,
        memory: bool = True,
        refer: bool = False,
        match: Match = "exact",
        facts: Range = (2, 3),
        names: Annotated[int, pydantic.Field(ge=2, le=12)] = 6,
        largest: Annotated[int, pydantic.Field(ge=2, le=10**6)] = 50,
        wording: Wording = "goods",
        request: HowAsked = "names",
        wordings: Wordings = "shared",
        noise: Fraction = 0.0,
        max_calls: Annotated[int, pydantic.Field(ge=0)] | None = None,
        max_faults: PositiveInt | None = None,
        max_chars: PositiveInt = 400,
        max_turns: PositiveInt = 8,
    ) -> None:
        format_of(format)
        self._supply = Supply(tools)
        self._solver = Solver(tuple(self._supply.names), refer)
        self._questions = None if questions is None else read_questions(questions)
        _refuse(facts=facts, names=names, noise=noise, file=questions, table=self._supply.needs_table())
        Refusals(NAME).when(
            request == "described" and (questions is not None or wording != "goods"),
            "only built-in sums over goods can be described.",
            "Leave `questions` and `wording` out, or set `request: names`.",
        )
        self._described, self._wordings = request == "described", wordings
        self._params = {
            "facts": list(facts),
            "names": names,
            "largest": largest,
            "wording": wording,
            "noise": noise,
        }
        self._limits: dict[str, Any] = {"max_calls": max_calls, "max_faults": max_faults, "max_chars": max_chars}
        self._format, self._manual, self._memory = format, manual, memory
        self._match, self._max_turns, self._noise = match, max_turns, noise
        self._box: Toolbox | None = None
        self._told_first: str | None = None
        self._lines: dict[tuple[str, ...], str] = {}
        self._state: State | None = None

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """What the questions are, and with `manual` an example of a call. The observation then lists the tools."""
        about = "You answer questions with tools. Call tools until you know the answer, then give it with `answer`."
        if self._questions is None:
            about += (
                " A question is a sum over a table: look up each of its numbers, then let the calculator work the sum "
                "out."
            )
        refer = " r1 in an argument stands for the first result, r2 for the second, and so on." * self._solver.refer
        call = ToolCall(name=ANSWER, arguments={"text": "760"})
        return write_manual(
            about + refer,
            # Without a manual, the chat template says how calls are written.
            example=Toolbox([_answer_tool()], format=self._format).write(call) if self._manual else "",
            ending=f"The answer ends the episode. It succeeds if it is right.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` sums, or `n` questions of the split in an order drawn by the seed. They repeat if the file has fewer.

        The split "play" is that of evaluations, unless the file has its own.
        """
        if self._questions is None:
            return seeded_tasks("tool_tasks", self._params, split, n, seed)
        known = "eval" if split == "play" and split not in self._questions else split
        pool = self._questions.get(known, [])
        if not pool and n > 0:
            what = f"the file has no questions of the split {known!r}."
            remedy = f'Mark some: {{"question": …, "answer": …, "split": "{known}"}}.'
            raise InvalidData(where=NAME, what=what, options=self._questions, remedy=remedy)
        order = sorted(range(len(pool)), key=lambda number: derive(seed, "tool_tasks", split, number))
        chosen = [pool[number] for number in itertools.islice(itertools.cycle(order), n)] if n > 0 else []
        noise = {"noise": self._noise}
        return [
            Task(env="tool_tasks", params=one.params() | noise, seed=derive(0, "tool_tasks", one.text), split=split)
            for one in chosen
        ]

    def content(self, task: Task) -> Any:
        """The question and its answers, and the table of a built-in sum."""
        problem, question, _ = self._drawn(task)
        return as_json((question.text, question.answers, problem.table if problem else None))

    def _drawn(self, task: Task) -> tuple[Problem | None, Question, float]:
        """The built-in problem (None for a question of a file), the question, and the probability that a call fails."""
        if "question" in task.params:
            return None, Question.of(task.params), task.params["noise"]
        world = {**self._params, **task.params}
        noise = world.pop("noise")
        problem = make_problem(**world | {"facts": tuple(world["facts"])}, seed=task.seed)
        return problem, Question(problem.question, (problem.answer,)), noise

    async def reset(self, task: Task) -> StepResult:
        """Begin an episode. Servers of the last one are closed. Those of this one start at their first call."""
        self._state = None
        problem, question, noise = self._drawn(task)
        if self._described and problem is not None:
            half = None if self._wordings == "shared" else task.seed % 2
            question = dataclasses.replace(question, text=describe(problem, seed=task.seed, half=half))
        tools = await self._supply.open(problem)
        if noise:
            tools = [self._failing(one) for one in tools]
        self._box = Toolbox([*tools, _answer_tool()], format=self._format, **self._limits)
        self._lines = {}
        self._told_first = self._box.explain() if self._manual else None
        self._state = State(question=question, problem=problem, seed=task.seed, noise=noise)
        return single(AGENT, self._observe(self._state))

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Run the calls of one act, or end the episode with its answer."""
        before, box = self._playing()
        box.restore(before.totals)
        self._state = now = dataclasses.replace(before, turn=before.turn + 1)
        parsed = self._read(box, actions[AGENT])
        if parsed.fault is not None:
            return await self._told(dataclasses.replace(now, said=(f"error: {parsed.fault}",)), unread=True)
        given = next((call for call in parsed.calls if call.name == ANSWER), None)
        if given is not None:
            return await self._told(now, given=self._solver.meant(now, str(given.arguments["text"])))
        meant = [
            ToolCall(name=call.name, arguments={k: self._solver.meant(now, v) for k, v in call.arguments.items()})
            for call in parsed.calls
        ]
        if all(call.name in QUICK for call in meant):
            results = [box.call(call) for call in meant]
        else:
            results = await box.gather(meant)
        alone = len(parsed.calls) == 1 and bool(actions[AGENT].tool_calls)  # the dialogue shows its call already
        found, said = list(now.found), []
        for call, one, result in zip(parsed.calls, meant, results, strict=True):
            written = box.write(call)
            written = written if len(written) <= SHOWN else f"{written[:SHOWN]}…"
            entry = Found(written, key_of(one.name, one.arguments), result.text)
            said.append(f"{written}: {result.text}" if result.ok and not alone else result.text)
            if result.ok and entry.key not in {old.key for old in found if old.text == entry.text}:
                found.append(entry)
        return await self._told(dataclasses.replace(now, found=tuple(found), said=tuple(said)), results=results)

    async def close(self) -> None:
        """Stop the servers of the last episode."""
        await self._supply.close()

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Look up the numbers, calculate, and answer. For a question of a file: make its `calls`, and answer.

        The expert knows the answer. It answers at once if it can use none of the tools.
        """
        state, box = self._playing()
        return Action(text=box.write(self._solver.next_call(state)))

    def snapshot(self) -> Any:
        """The state of the episode. Raises: ContractError, if a tool has a state that cannot be restored."""
        if self._supply.remembers:
            remedy = "Leave out MCP servers, `python` and `writes`, or choose a strategy that does not branch."
            raise ContractError(where=NAME, what="the state of its tools cannot be restored.", remedy=remedy)
        return self._playing()[0]

    def restore(self, state: Any) -> None:
        self._state = state

    # ---- acting -------------------------------------------------------------------------------------------
    def _playing(self) -> tuple[State, Toolbox]:
        return started(self._state, self), started(self._box, self)

    def _read(self, box: Toolbox, action: Action) -> Parsed:
        """The calls of an act, at least one. Otherwise a fault, which `box` counts."""
        if action.tool_calls:
            parsed = Parsed(tuple(action.tool_calls))
        else:
            text = action.value if isinstance(action.value, str) else ""
            text = text.rstrip(" .\n") if self._format == "words" else text
            parsed = box.read(text)
            if not (parsed.fault or parsed.calls):
                parsed = box.read(stripped(text))
            if parsed.fault is not None:
                return parsed
        wrong = "" if parsed.calls else "nothing was called"
        for call in parsed.calls:
            if call.name == ANSWER and "text" not in call.arguments:
                wrong = "the answer has no text"
        if not wrong:
            return parsed
        box.unread()
        return Parsed(fault=f"{wrong}. Call a tool, or write: {box.write(answer_call('42'))}")

    async def _told(
        self, state: State, *, results: Sequence[ToolResult] = (), unread: bool = False, given: str | None = None
    ) -> StepResult:
        """The result of an act that led to this state. `given`: the answer, if the act gave one."""
        _, box = self._playing()
        self._state = state = dataclasses.replace(state, totals=box.totals)
        right = given is not None and await self._judged(given, state.question.answers)
        stop = None if given is not None else box.exhausted
        cut = stop is not None or state.turn >= self._max_turns
        failed = sum(not result.ok for result in results)
        faults = box.failed | ({"unreadable": box.faults} if box.faults else {})
        info: dict[str, Any] = {
            "calls": box.calls,
            "cost": box.cost,
            "faults": dict(sorted(faults.items())),
            "success": right,
        }
        info |= {"stop": stop.value} if stop is not None else {}
        return single(
            AGENT,
            None if given is not None else self._observe(state),
            reward=float(right),
            over=given is not None,
            cut=cut,
            act={"tool_call": float(len(results) + unread), "tool_error": float(failed + unread)},
            readable=not unread,
            info=info,
        )

    async def _judged(self, given: str, answers: Sequence[str]) -> bool:
        return await equals(given, answers) if self._match == "math" else matches(given, answers)

    def _failing(self, one: Tool) -> Tool:
        """The tool, which now fails as often as the task says. The same calls in the same turns fail each time."""

        def call(**arguments: Any) -> Any:
            state, _ = self._playing()
            drawn = derive(
                state.seed, "noise", state.turn, one.name, json.dumps(arguments, sort_keys=True, default=str)
            )
            if drawn / 2**63 < state.noise:
                raise ToolError(f"{one.name} is busy, call again")
            return one.call(**arguments)

        return dataclasses.replace(one, call=call)

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        lines: list[str] = []
        if self._memory:
            lines += [f"r{place} {entry.written}: {entry.text}" for place, entry in enumerate(state.found, start=1)]
            lines += [line for line in state.said if line.startswith("error:")]
        else:
            lines += state.said
        if self._memory or state.turn == 0:  # at the end, at the same distance from each act, which helps small models
            lines.append(f"question: {state.question.text}")
        sensible = self._solver.sensible(state)
        content = json.dumps([state.question.text, [[entry.written, entry.text] for entry in state.found]])
        return Observation(
            text="\n".join(lines),
            legal=None if sensible is None else list(dict.fromkeys(self._line(call) for call in sensible)),
            state_key=f"{state.seed}/{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            instruction=self._told_first,
            tools=self._playing()[1].declarations,
        )

    def _line(self, call: ToolCall) -> str:
        """A call as text. It is kept, since most calls occur in each turn of an episode."""
        key = (call.name, *call.arguments.values())
        if key not in self._lines:
            self._lines[key] = self._playing()[1].write(call)
        return self._lines[key]


def _answer_tool() -> Tool:
    """The tool whose call is an answer. It never runs."""
    text = {"type": "string", "description": "the answer and nothing else"}
    return Tool(
        name=ANSWER,
        description="Answer the question, which ends the episode.",
        parameters={"type": "object", "properties": {"text": text}, "required": ["text"]},
        call=str,
    )


def _refuse(*, facts: Range, names: int, noise: float, file: str | None, table: list[str]) -> None:
    """Raises: RecipeError, for options with which no task could be solved."""
    refuse, most = Refusals(NAME), min(names * len(WORDS["goods"].columns), 9)
    refuse.when_reversed(facts=facts)
    refuse.when(
        facts[1] > most,
        f"`facts` goes up to {facts[1]}, too many for a table of {names} names.",
        f"Set its second number to {most} or less.",
    )
    refuse.when_certain("no call would ever work", noise=noise)
    refuse.when(
        file is not None and table,
        f"`{next(iter(table), '')}` reads the built-in table, but the questions come from {file}.",
        "Leave it out, or give it documents or a database: `{search: {documents: texts.jsonl}}`.",
    )
