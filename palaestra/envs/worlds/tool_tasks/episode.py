"""The state of an episode of `tool_tasks`, and the expert's next call."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.data import ToolCall
from palaestra.envs.worlds.tool_tasks.goods import Fact, Problem
from palaestra.envs.worlds.tool_tasks.questions import Question
from palaestra.tools.toolbox import Totals

REFERENCE = re.compile(r"\br([1-9][0-9]{0,2})\b")
ANSWER = "answer"


def key_of(name: str, arguments: Mapping[str, Any]) -> str:
    """A key that is equal for calls of the same tool with the same arguments."""
    return f"{name} {json.dumps(dict(arguments), sort_keys=True)}"


def answer_call(text: str) -> ToolCall:
    """The call that gives an answer."""
    return ToolCall(name=ANSWER, arguments={"text": text})


@dataclass(frozen=True, slots=True)
class Found:
    """A result: its call as the agent wrote it, the key of the call, and the text that it returned."""

    written: str
    key: str
    text: str

    @property
    def is_word(self) -> bool:
        """Whether the result is short enough for a sum or an answer."""
        return len(self.text) <= 12


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode."""

    question: Question
    problem: Problem | None
    seed: int
    noise: float
    found: tuple[Found, ...] = ()  # results of successful calls, each once
    said: tuple[str, ...] = ()  # the results of the last act, or its fault
    turn: int = 0
    totals: Totals = field(default_factory=Totals)

    def resolved(self, text: str) -> str:
        """The text with results in place of `r1`, `r2` …"""

        def result(match: re.Match[str]) -> str:
            place = int(match[1])
            return self.found[place - 1].text if place <= len(self.found) else match[0]

        return REFERENCE.sub(result, text)


@dataclass(frozen=True, slots=True)
class Solver:
    """Finds the expert's next call, and all calls that make sense.

    Attributes:
        names: names of the tools.
        refer: whether arguments refer to results, as in `r1`, in place of repeating them.
    """

    names: tuple[str, ...]
    refer: bool

    def next_call(self, state: State) -> ToolCall:
        """The first call of the expert's plan that was not made yet; after the last one, the answer."""
        asked = {entry.key for entry in state.found}
        for call in self._plan(state):
            meant = {k: self.meant(state, v) for k, v in call.arguments.items()}
            if key_of(call.name, meant) not in asked:
                return call
        return self._answer(state, state.question.answers[0])

    def meant(self, state: State, value: Any) -> Any:
        """An argument with results in place of `r1`, `r2` …"""
        return state.resolved(value) if self.refer and isinstance(value, str) else value

    def sensible(self, state: State) -> list[ToolCall] | None:
        """Calls that make sense now: all facts, sums, the results as answers. None for a question of a file."""
        problem = state.problem
        if problem is None:
            return None
        calls = [self._fact_call(problem, fact) for fact in problem.table]
        words = [f"r{n}" if self.refer else e.text for n, e in enumerate(state.found, start=1) if e.is_word]
        if "calculator" in self.names and problem.signs:
            orders = itertools.islice(itertools.permutations(words[:5], len(problem.facts)), 8)
            calls += [_sum_call(problem.expression(operands)) for operands in orders]
        calls += [self._answer(state, entry.text) for entry in state.found if entry.is_word]
        return [call for call in calls if call is not None] + [self.next_call(state)]

    def _plan(self, state: State) -> list[ToolCall]:
        """All calls that lead to the answer."""
        if state.problem is None:
            return [ToolCall(name=name, arguments=arguments) for name, arguments in state.question.calls]
        problem = state.problem
        plan = [call for fact in problem.facts if (call := self._fact_call(problem, fact)) is not None]
        if "calculator" in self.names and problem.signs:
            plan.append(_sum_call(problem.expression([self._operand(state, problem, fact) for fact in problem.facts])))
        return plan

    def _fact_call(self, problem: Problem, fact: Fact) -> ToolCall | None:
        """The call that finds a fact; None if no tool can."""
        name, column = fact
        if "lookup" in self.names:
            return ToolCall(name="lookup", arguments={"name": name, "column": column})
        if "sql" in self.names:
            query = f"SELECT {column} FROM {problem.words.table} WHERE name = '{name}'"
            return ToolCall(name="sql", arguments={"query": query})
        if "search" in self.names:
            return ToolCall(name="search", arguments={"query": f"{name} {column}"})
        return None

    def _operand(self, state: State, problem: Problem, fact: Fact) -> str:
        """A fact as an operand: with `refer` the name of the result that has it, else its digits."""
        text, call = str(problem.table[fact]), self._fact_call(problem, fact)
        key = "" if call is None else key_of(call.name, call.arguments)
        places = [n for n, entry in enumerate(state.found, start=1) if (entry.key, entry.text) == (key, text)]
        return f"r{places[0]}" if self.refer and places else text

    def _answer(self, state: State, text: str) -> ToolCall:
        places = [number for number, entry in enumerate(state.found, start=1) if entry.text == text]
        return answer_call(f"r{places[-1]}" if self.refer and places else text)


def _sum_call(expression: str) -> ToolCall:
    return ToolCall(name="calculator", arguments={"expression": expression})
