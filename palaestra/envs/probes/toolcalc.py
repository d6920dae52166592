"""Toolcalc: work out an expression step by step, with two tools that may fail: a calculator and a list of names.

A task's seed decides everything, the failures of tools included. Expressions are in `toolcalc_expressions`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, ToolCall, derive
from palaestra.envs.kit.calls import call_in, command
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.probes.toolcalc_expressions import (
    FAMILIES,
    NAMES,
    OPERATIONS,
    Expression,
    Family,
    Operation,
    apply,
    build,
)
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.tools import Toolbox

AGENT = "player"
CALC, HEAD, LOOKUP, ANSWER, DONE = "calc", "head", "lookup", "answer", "done"
UNREADABLE = "cannot read that"
DIGITS = 18  # most digits of an answer
TAGGED = re.compile(r"\s*(?:<think>[^<>]*</think>\s*)?<tool>([^<>]*)</tool>\s*")
Range = tuple[PositiveInt, PositiveInt]


class Said(IntEnum):
    """How the last act went."""

    FINE = 0
    BUSY = 1  # the tool failed; the same call may work later
    WRONG = 2  # the tool cannot do this here
    UNREAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode."""

    expression: Expression
    seed: int
    failure: float
    value: int
    place: int = 0  # number of operations done
    known: frozenset[str] = frozenset()
    said: Said = Said.FINE
    text: str = "start."
    turn: int = 0
    calls: int = 0
    errors: int = 0
    answers: int = 0
    answered: int | None = None
    readable: bool = True  # whether all acts so far could be read

    @property
    def over(self) -> bool:
        """Whether no operation is left."""
        return self.place == len(self.expression.operations)

    @property
    def right_so_far(self) -> bool:
        """Whether the value is what it should be here."""
        return self.value == self.expression.results[self.place]

    @property
    def unknown(self) -> str | None:
        """The name of the next number, if the number has one and was not looked up yet."""
        name = None if self.over else self.expression.names[self.place]
        return None if name in self.known else name

    def easy(self, mental: int) -> bool:
        """Whether `head` does the next operation right, which needs small numbers. `mental`: small is below it."""
        if self.over or self.unknown:
            return False
        small = self.expression.numbers[self.place] < mental
        return small and (self.expression.operations[self.place] != "times" or abs(self.value) < mental)


@register("environment", "toolcalc")
class ToolCalc(KeepsState[State]):
    """Work out `17 plus red times 3` from left to right, then answer. The tools `calc` and `lookup` may fail.

    `lookup red` tells the number of a name. `calc plus` does the next operation with the calculator. `head plus` does
    it in the head: with numbers that are not small the result is wrong, and nothing says so. If an act names another
    operation than the expression has, the result is another one. `answer` answers with the present value, `answer 42`
    with a given number.

    Args:
        operations: fewest and most operations; all numbers between are equally likely. Higher: more acts in a row must
            be right. Usual: 2 to 4.
        families: kinds of expressions, all equally likely: "small" (numbers of one digit), "large" (numbers mostly of
            two digits), "named" (as "large", and some numbers are shown as names).
        failure: probability that a call fails. The same call may work a turn later. Higher: longer episodes.
        mental: numbers below it are small. 0: nothing can be done in the head. Usual: 10.
        tools: False: there is no `calc` and no `lookup`.
        confirm: True: an answer does not end the episode and may be given again; `done` ends it, and the last answer
            counts.
        tags: True: an act is written `<tool> calc plus </tool>`, and `<think> words </think>` may stand before it.
            Other text, other tags, nested tags and tags that are not closed cannot be read.
        calls: True: the commands are tools, `calc(operation)`, `head(operation)`, `lookup(name)`, `answer(number)` and
            `done()`, which a chat template declares where the role says `tools: {native: true}`. An act is one call.
        max_turns: turns until the episode is cut off. An expression takes up to 2 · operations + 1. Usual: 12.

    Reward: 1 for the right answer at the end, else 0.

    A call that fails, is impossible or cannot be read is answered by a text that begins with `error:`, and the episode
    goes on. With `calls` the text says what is wrong with the call. The `info` of a step has `tool_call`; `tool_error`
    (with tools, an act that cannot be read counts as a failed call); `executable`, 0 for acts that cannot be read or
    are impossible; `answer`; `process`, 1 for a step towards the right answer; and `format`, 1 if the episode ends here
    with exactly one answer and all acts could be read. The `info` of the episode has `calls`, `errors`, `answers`,
    `well_formed` and `stratum`, which is the family.

    `vector`: the next operation, the name that must be looked up for it (or that its number is known), whether it is
    easy, the number of operations left, how the last act went, whether there is an answer, and the share of turns left.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset(
        {"state_key", "outcome", "process", "executable", "tool_call", "tool_error", "answer", "format", "stratum"}
    )

    def __init__(
        self,
        *,
        operations: Range = (2, 4),
        families: tuple[Family, ...] = FAMILIES,
        failure: Fraction = 0.1,
        mental: Annotated[int, pydantic.Field(ge=0, le=10)] = 10,
        tools: bool = True,
        confirm: bool = False,
        tags: bool = False,
        calls: bool = False,
        max_turns: PositiveInt = 12,
    ) -> None:
        _refuse_impossible(operations, families, failure, both=tags and calls)
        self._params: dict[str, Any] = {
            "operations": list(operations),
            "families": list(families),
            "failure": failure,
            "mental": mental,
        }
        self._tools, self._confirm, self._max_turns, self._most = tools, confirm, max_turns, operations[1]
        self._mental, self._tags = mental, tags
        kinds = (CALC, HEAD) if tools else (HEAD,)
        self.actions = (
            *(f"{kind} {operation}" for kind in kinds for operation in OPERATIONS),
            *(f"{LOOKUP} {name}" for name in NAMES if tools),
            ANSWER,
            *((DONE,) if confirm else ()),
        )
        self.action_count = len(self.actions)
        self._box = _tools_for(kinds, lookup=tools, confirm=confirm) if calls else None
        self._written = tuple(map(self._write, self.actions))
        self.vector_size = len(OPERATIONS) + len(NAMES) + 2 + self._most + 1 + len(Said) + 2

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them. With `calls`, the commands are declared as
        tools."""
        about = (
            "You work out a sum from left to right, one operation in each turn. Every message shows what is left of it."
        )
        if self._tools:
            about += " A name stands for a number that must be looked up first. A tool may fail: then use it again."
        final = (
            "`done` ends the episode, and the last answer counts" if self._confirm else "The answer ends the episode"
        )
        ending = f"{final}. It succeeds if it is right.{turn_limit(self._max_turns)}"
        if self._box is not None:
            names = ", ".join(f"`{name}`" for name in self._box.tools)
            return write_manual(f"{about} Make one call in each turn, of one of these tools: {names}.", ending=ending)
        commands = {
            "lookup NAME": "tell the number of a name",
            "calc plus, calc minus, calc times": "do the next operation with the calculator; name the "
            "operation that the sum has",
            "head plus, head minus, head times": "do it in your head, which is wrong for large numbers",
            "answer": "answer with the present value",
            "answer NUMBER": "answer with another number",
            "done": "end the episode",
        }
        has = {command.partition(" ")[0] for command in self.actions}
        commands = {command: does for command, does in commands.items() if command.partition(" ")[0] in has}
        tagged = " Write each command between tags, as in the example." if self._tags else ""
        return write_manual(f"{about}{tagged}", commands, example=self._write(self.actions[0]), ending=ending)

    def _write(self, action: str) -> str:
        """A command in the form that the options ask for."""
        if self._box is not None:
            kind, _, given = action.partition(" ")
            arguments = {"name" if kind == LOOKUP else "operation": given} if given else {}
            return self._box.write(ToolCall(name=kind, arguments=arguments))
        return f"<tool> {action} </tool>" if self._tags else action

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` expressions. Splits share no seed."""
        return seeded_tasks("toolcalc", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The expression."""
        return as_json(self._expression(task))

    def difficulty(self, task: Task) -> float:
        """How many operations the expression has."""
        return float(len(self._expression(task).operations))

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        expression = self._expression(task)
        self._mental = world["mental"]
        self.state = State(expression=expression, seed=task.seed, failure=world["failure"], value=expression.start)
        return single(AGENT, self._observe(self.state), info={"stratum": expression.family})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        meant = self._read(actions[AGENT])
        self.state = after = self._act(dataclasses.replace(before, turn=before.turn + 1), meant)
        over = not isinstance(meant, str) and meant[0] == (DONE if self._confirm else ANSWER)
        cut = not over and after.turn >= self._max_turns
        right = over and after.answered == after.expression.answer
        well_formed = over and after.readable and after.answers == 1
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=float(right),
            over=over,
            cut=cut,
            act={**_of_act(before, after, right=right), "format": float(well_formed)},
            readable=after.said is not Said.UNREAD,
            info={
                "calls": after.calls,
                "errors": after.errors,
                "answers": after.answers,
                "well_formed": float(well_formed),
                "success": right,
            },
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Look names up, calculate, use the head where that is easy, then answer. Earlier errors go unnoticed."""
        state = self.state
        if state.over:
            text = DONE if state.answered is not None else ANSWER
        elif state.unknown and self._tools:
            text = f"{LOOKUP} {state.unknown}"
        else:
            kind = CALC if self._tools and not state.easy(self._mental) else HEAD
            text = f"{kind} {state.expression.operations[state.place]}"
        index = self.actions.index(text)
        return Action(text=self._written[index], value=index)

    # ---- playing ------------------------------------------------------------------------------------------
    def _expression(self, task: Task) -> Expression:
        world = {**self._params, **task.params}
        return build(*world["operations"], tuple(world["families"]), task.seed)

    def _read(self, action: Action) -> tuple[str, ...] | str:
        """The words of an action. For one that cannot be read, a text that says what is wrong."""
        value = action.value
        if isinstance(value, int | np.integer) and 0 <= value < len(self.actions):
            return tuple(self.actions[int(value)].split())
        if self._box is not None:
            return _words_of(call_in(action, self._box))
        if not isinstance(value, str):
            return UNREADABLE
        if self._tags:
            found = TAGGED.fullmatch(value)
            value = found[1] if found else ""
        words = tuple(value.lower().split())
        if " ".join(words) in self.actions:
            return words
        number = words[1].removeprefix("-") if len(words) == 2 and words[0] == ANSWER else ""
        return words if number.isascii() and number.isdecimal() and len(number) <= DIGITS else UNREADABLE

    def _act(self, state: State, meant: tuple[str, ...] | str) -> State:
        match meant:
            case str():
                state = dataclasses.replace(state, readable=False)
                return _failed(state, Said.UNREAD, meant) if self._tools else _unread(state, meant)
            case ("answer", *number):
                given = int(number[0]) if number else state.value
                return dataclasses.replace(
                    state, answered=given, answers=state.answers + 1, said=Said.FINE, text="noted."
                )
            case ("done",):
                return dataclasses.replace(state, said=Said.FINE)
            case ("lookup", name):
                return _look_up(state, name)
            case (kind, operation):
                return self._compute(state, kind, operation)
        raise AssertionError(meant)

    def _compute(self, state: State, kind: str, operation: Operation) -> State:
        if kind == HEAD and state.over:
            return dataclasses.replace(state, said=Said.WRONG, text="nothing is left.")
        if kind == CALC and state.over:
            return _failed(state, Said.WRONG, "nothing is left")
        if kind == CALC and state.unknown:
            return _failed(state, Said.WRONG, f"{state.unknown} is not known")
        if kind == CALC and _fails(state, kind, operation):
            return _failed(state, Said.BUSY, "calc is busy")
        found = apply(operation, state.value, state.expression.numbers[state.place])
        if kind == HEAD and not state.easy(self._mental):
            found += 1 + derive(state.seed, HEAD, state.place) % 9
        return dataclasses.replace(
            state,
            value=found,
            place=state.place + 1,
            calls=state.calls + (kind == CALC),
            said=Said.FINE,
            text=f"{operation} is done.",
        )

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        answered = "none" if state.answered is None else str(state.answered)
        known = " ".join(sorted(state.known))
        return Observation(
            text=_describe(state),
            vector=self._vector(state),
            legal=self._written,
            state_key=f"{state.seed}/{state.place} {state.value}/{known}/{answered}",
            tools=None if self._box is None else self._box.declarations,
        )

    def _vector(self, state: State) -> np.ndarray:
        operation, name = np.zeros(len(OPERATIONS)), np.zeros(len(NAMES))
        if not state.over:
            operation[OPERATIONS.index(state.expression.operations[state.place])] = 1
        if state.unknown:
            name[NAMES.index(state.unknown)] = 1
        number = (not state.over and not state.unknown, state.easy(self._mental))
        left = np.arange(self._most + 1) == min(len(state.expression.operations) - state.place, self._most)
        said = np.arange(len(Said)) == state.said
        rest = (state.answered is not None, 1 - state.turn / self._max_turns)
        return np.concatenate([operation, name, number, left, said, rest]).astype(np.float32)


# ---- calls ------------------------------------------------------------------------------------------------
def _tools_for(kinds: tuple[str, ...], *, lookup: bool, confirm: bool) -> Toolbox:
    """The commands as tools. `kinds`: of `calc` and `head`, those that there are."""
    operation = {"operation": {"type": "string", "enum": list(OPERATIONS)}}
    number = {"number": {"type": "integer", "description": "in place of the present value"}}
    told = {CALC: "with the calculator", HEAD: "in the head, which is wrong for large numbers"}
    tools = [command(kind, f"Do the next operation {told[kind]}.", operation) for kind in kinds]
    if lookup:
        tools.append(command(LOOKUP, "Tell the number of a name.", {"name": {"type": "string", "enum": list(NAMES)}}))
    ends = "" if confirm else ", which ends the episode"
    tools.append(command(ANSWER, f"Answer with the present value{ends}.", number, optional=("number",)))
    return Toolbox([*tools, *([command(DONE, "End the episode.", {})] if confirm else [])])


def _words_of(call: ToolCall | str) -> tuple[str, ...] | str:
    """The words of a call whose arguments fit its tool. A text is the fault of one that does not, and is returned."""
    if isinstance(call, str):
        return call
    number = call.arguments.get("number")
    if number is not None:
        fits = abs(number) < 10**DIGITS
        return (call.name, str(int(number))) if fits else f"`number` has more than {DIGITS} digits"
    return (call.name, *call.arguments.values())


# ---- playing ----------------------------------------------------------------------------------------------
def _look_up(state: State, name: str) -> State:
    if name not in state.expression.names[state.place :]:
        return _failed(state, Said.WRONG, f"no {name} here")
    if _fails(state, LOOKUP, name):
        return _failed(state, Said.BUSY, "lookup is busy")
    number = state.expression.numbers[state.expression.names.index(name)]
    return dataclasses.replace(
        state, known=state.known | {name}, calls=state.calls + 1, said=Said.FINE, text=f"{name} is {number}."
    )


def _fails(state: State, *call: str) -> bool:
    """Whether a call fails in this turn. The task's seed decides it."""
    return derive(state.seed, "failure", state.turn, *call) / 2**63 < state.failure


def _failed(state: State, said: Said, why: str) -> State:
    return dataclasses.replace(state, calls=state.calls + 1, errors=state.errors + 1, said=said, text=f"error: {why}.")


def _unread(state: State, why: str) -> State:
    return dataclasses.replace(state, said=Said.UNREAD, text=f"error: {why}.")


def _of_act(before: State, after: State, *, right: bool) -> dict[str, float]:
    """The numbers that `info` tells of an act."""
    answered = after.answers > before.answers and after.answered == after.expression.answer
    moved = after.place > before.place or after.known != before.known
    return {
        "tool_call": float(after.calls - before.calls),
        "tool_error": float(after.errors - before.errors),
        "executable": float(after.said not in (Said.WRONG, Said.UNREAD)),
        "answer": float(after.answers - before.answers),
        "process": float(answered or right or (moved and after.right_so_far)),
    }


def _describe(state: State) -> str:
    """How the last act went, what is left, and the answer if there is one: `noted. 17 times 3. answered 51.`"""
    words = [str(state.value)]
    expression = state.expression
    for place in range(state.place, len(expression.operations)):
        name = expression.names[place]
        number = str(expression.numbers[place]) if name is None or name in state.known else name
        words += [expression.operations[place], number]
    answered = "" if state.answered is None else f" answered {state.answered}."
    return f"{state.text} {' '.join(words)}.{answered}"


def _refuse_impossible(operations: Range, families: tuple[Family, ...], failure: float, *, both: bool) -> None:
    refuse = Refusals("environment: toolcalc")
    refuse.when_reversed(operations=operations)
    refuse.when_empty(FAMILIES, families=families)
    refuse.when_certain("no call would ever work", failure=failure)
    refuse.when(both, "`tags: true` and `calls: true` ask for two forms of an act.", "Leave one of them out.")
