"""CodeFix: mend the one fault of a tiny program. Unit tests show the fault, and an edit replaces one line.

A small interpreter runs the programs; no text is ever run as Python. A task's seed decides its program and its fault.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, Trajectory, derive
from palaestra.envs.kit.choices import choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "programmer"
OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
WORDS = tuple(OPERATIONS)
INPUTS = range(1, 7)  # inputs that tests are drawn from
TESTS = 2
FAVORITE = 2  # the line in which `bias` puts faults
Lines = Annotated[int, pydantic.Field(ge=2, le=8)]
Kind = Literal["plan", "feedback", "hint", "patch"]
Fault = Literal["word", "number"]


class Statement(NamedTuple):
    """`add 2`: x becomes x + 2."""

    word: str
    number: int

    def __str__(self) -> str:
        return f"{self.word} {self.number}"


Program = tuple[Statement, ...]


def execute(program: Program, x: int) -> int:
    """The result of a program for the input x."""
    for statement in program:
        x = OPERATIONS[statement.word](x, statement.number)
    return x


class Edit(NamedTuple):
    """Replaces the line `line`, counted from 1, by `statement`."""

    line: int
    statement: Statement

    def __str__(self) -> str:
        return f"set {self.line} {self.statement}"

    def applied(self, program: Program) -> Program:
        """The program after the edit. A program without this line stays as it is."""
        if self.line > len(program):
            return program
        return (*program[: self.line - 1], self.statement, *program[self.line :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A faulty program, the edit that mends it, and tests: pairs of an input and the right program's result."""

    faulty: Program
    mend: Edit
    tests: tuple[tuple[int, int], ...]

    def passes(self, program: Program) -> bool:
        """Whether a program passes all tests."""
        return all(execute(program, x) == want for x, want in self.tests)

    def results(self, program: Program) -> str:
        """One sentence for each failing test, such as `on 2 got 7 want 5.`"""
        found = [(x, execute(program, x), want) for x, want in self.tests]
        return " ".join(f"on {x} got {got} want {want}." for x, got, want in found if got != want)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The options of the environment that decide which programs and faults there are."""

    lines: int = 4
    fewest: int = 4
    numbers: int = 4
    words: int = 3
    faults: tuple[Fault, ...] = ("word", "number")
    programs: int = 0
    bias: float = 0.0


@lru_cache(maxsize=8192)
def build(world: World, seed: int) -> Problem:
    """A program whose numbers differ as far as possible, with a fault that makes all tests fail."""
    draw = random.Random(seed)
    # the last bit of a seed tells its split
    right = _written(world, random.Random(seed // 2 % world.programs) if world.programs else draw)
    while True:
        line = FAVORITE if draw.random() < world.bias else draw.randint(1, len(right))
        faulty = Edit(line, draw.choice(list(_neighbors(right[line - 1], world)))).applied(right)
        tests = tuple((x, execute(right, x)) for x in sorted(draw.sample(INPUTS, TESTS)))
        if not any(execute(faulty, x) == want for x, want in tests):
            return Problem(faulty=faulty, mend=Edit(line, right[line - 1]), tests=tests)


def _written(world: World, draw: random.Random) -> Program:
    size = draw.randint(world.fewest, world.lines)
    numbers = draw.sample(range(1, world.numbers + 1), min(size, world.numbers))
    numbers += [draw.randint(1, world.numbers) for _ in range(size - len(numbers))]
    return tuple(Statement(draw.choice(WORDS[: world.words]), number) for number in numbers)


def _neighbors(statement: Statement, world: World) -> Iterator[Statement]:
    """What a fault can make of a statement: one with another word or with another number."""
    if "word" in world.faults:
        yield from (Statement(word, statement.number) for word in WORDS[: world.words] if word != statement.word)
    if "number" in world.faults:
        yield from (Statement(statement.word, n) for n in range(1, world.numbers + 1) if n != statement.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. `most`: edits allowed. `done`: edits made. `said`: result of the last one."""

    problem: Problem
    program: Program
    most: int
    done: int = 0
    said: str = ""


@register("environment", "codefix")
class CodeFix(KeepsState[State]):
    """Mend a tiny program. One statement is wrong, and tests show by how much.

    An edit replaces a whole line: `set 2 add 3`. All tests run after each edit. If one still fails, the edit is undone.
    So an episode is a search for one edit, and a policy that remembers its edits does not repeat them.

    Args:
        lines: most lines of a program, 2–8. Higher: more places for the fault. Usual: 3–4.
        fewest: fewest lines of a program. None: all programs have `lines` lines.
        numbers: statements have numbers from 1 to `numbers`. Higher: more edits, rarer success. Usual: 3–4.
        words: 3: statements with add, sub and mul. 2: only add and sub, so that all tests are wrong by the same number.
            Usual: 3.
        faults: what can be wrong in a statement: its "word", its "number". "word" alone leaves fewer edits to try.
        edits: edits of an episode; the tests run after each. Higher: easier. Usual: 2–4.
        undo: False: an edit that fails stays in the program.
        programs: 0: a new program for every seed. k > 0: all seeds of all splits share k right programs, which a policy
            can learn.
        bias: share of tasks whose fault is put into line 2. Higher: a fixed advice helps more. Usual: 0.
        teacher: parts of the guidance. "plan": one statement is wrong. "feedback": the failing tests. "hint": the line.
            "patch": the whole edit, which is the answer.
        reveal: probability that a hint names the line. Lower: a weaker teacher. Usual: 1.

    Reward: 1 when all tests pass, else 0. An action that cannot be read costs an edit and changes nothing, and so does
    an edit of a line that the program does not have. `process` of a step is 1 if the edit was in the faulty line.
    `tests` of an episode is the number of tests that ran. An action is given as text or as an index into `actions`. The
    difficulty of a task is the number of lines. `guidance` is advice from a teacher that has seen an attempt and knows
    the fault.

    Raises: RecipeError, if `fewest` exceeds `lines`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = (
        "tasks",
        "instruction",
        "content",
        "difficulty",
        "expert",
        "snapshot",
        "guidance",
        "vector",
        "phrases",
    )
    provides = frozenset({"state_key", "outcome", "process"})  # columns of a table of its episodes

    def __init__(
        self,
        *,
        lines: Lines = 4,
        fewest: Lines | None = None,
        numbers: Annotated[int, pydantic.Field(ge=2, le=9)] = 4,
        words: Annotated[int, pydantic.Field(ge=2, le=len(WORDS))] = 3,
        faults: Annotated[tuple[Fault, ...], pydantic.Field(min_length=1)] = ("word", "number"),
        edits: PositiveInt = 3,
        undo: bool = True,
        programs: Annotated[int, pydantic.Field(ge=0)] = 0,
        bias: Fraction = 0.0,
        teacher: tuple[Kind, ...] = ("plan", "feedback", "hint"),
        reveal: Fraction = 1.0,
    ) -> None:
        fewest = lines if fewest is None else fewest
        Refusals("environment: codefix").when(
            fewest > lines,
            f"`fewest: {fewest}` is more than `lines: {lines}`.",
            "Set `fewest` to at most `lines`, or leave it out.",
        )
        self._params: dict[str, Any] = {"lines": lines, "fewest": fewest, "numbers": numbers, "words": words}
        self._params |= {"faults": list(faults), "programs": programs, "bias": bias, "edits": edits}
        self._undo, self._teacher, self._reveal = undo, teacher, reveal
        statements = [Statement(word, number) for word in WORDS[:words] for number in range(1, numbers + 1)]
        self._choices = tuple(Edit(line, one) for line in range(1, lines + 1) for one in statements)
        self._by_text = {str(edit): edit for edit in self._choices}
        self.actions = tuple(self._by_text)
        self.action_count = len(self.actions)
        self.vector_size = lines * (len(WORDS) + numbers) + 3 * TESTS + 2

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You mend a tiny program that changes x line by line. One line is wrong, and `on 2 got 6 want 5` "
            "says how the result for x = 2 differs. An edit that does not mend the program is undone. The "
            "operations are add, sub and mul.",
            {
                "set LINE OPERATION NUMBER": "replace a whole line",
            },
            example="set 2 add 3",
            ending="The episode succeeds when all tests pass.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` programs. Splits share no seed."""
        return seeded_tasks("codefix", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The faulty program, the edit that mends it, and the tests."""
        return as_json(self._of(task))

    def difficulty(self, task: Task) -> float:
        """The number of lines of the program."""
        return float(len(self._of(task).faulty))

    def reset(self, task: Task) -> StepResult:
        problem, most = self._of(task), {**self._params, **task.params}["edits"]
        self.state = State(problem=problem, program=problem.faulty, most=most)
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        problem, edit = before.problem, self._read(actions[AGENT].value)
        tried = before.program if edit is None else edit.applied(before.program)
        won = problem.passes(tried)
        kept = won or not self._undo
        said = "not understood" if edit is None else "" if kept else f"undone {problem.results(tried)}"
        after = replace(before, program=tried if kept else before.program, done=before.done + 1, said=said)
        self.state = after
        over = won or after.done >= after.most
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=float(won),
            over=over,
            act={"process": float(edit is not None and edit.line == problem.mend.line)},
            readable=edit is not None,
            info={"success": won, "tests": after.done * TESTS} if over else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The edit that mends the fault."""
        return choice(str(self.state.problem.mend), self.actions)

    def guidance(self, trajectory: Trajectory, *, seed: int) -> str:
        """The teacher's advice after an attempt, or before the first. `seed` decides whether it names the line."""
        problem = self._of(trajectory.task)
        shown = random.Random(derive(seed, "hint")).random() < self._reveal
        line = f"look at line {problem.mend.line}." if shown else ""
        says: dict[str, str] = {
            "plan": "one statement is wrong.",
            "feedback": f"{sum(1 for _ in trajectory.steps)} edits failed: {problem.results(problem.faulty)}",
            "hint": line,
            "patch": f"{problem.mend}.",
        }
        return " ".join(says[kind] for kind in self._teacher if says[kind])

    @property
    def phrases(self) -> tuple[str, ...]:
        """Texts of the teacher, whose words a tokenizer must know."""
        lines = range(1, self._params["lines"] + 1)
        return ("one statement is wrong.", *(f"look at line {line}. {line} edits failed:" for line in lines))

    def reference(self, task: Task) -> str:
        """The whole answer, which a teacher must not tell."""
        return str(self._of(task).mend)

    # ---- observations -------------------------------------------------------------------------------------
    def _of(self, task: Task) -> Problem:
        given = {**self._params, **task.params}
        given["faults"] = tuple(given["faults"])
        return build(World(**{name: value for name, value in given.items() if name != "edits"}), task.seed)

    def _read(self, given: Any) -> Edit | None:
        """The edit that an index or a text means, or None if it cannot be read."""
        if isinstance(given, int | np.integer):
            return self._choices[int(given)] if 0 <= int(given) < len(self._choices) else None
        return self._by_text.get(given.strip().rstrip(".")) if isinstance(given, str) else None

    def _observe(self, state: State) -> Observation:
        listing = " ".join(f"{line} {statement}." for line, statement in enumerate(state.program, start=1))
        text = " ".join(piece for piece in (listing, state.problem.results(state.program), state.said) if piece)
        legal = [edit for edit in self._choices if edit.line <= len(state.program)]
        return Observation(
            text=text,
            vector=self._vector(state),
            legal=list(map(str, legal)),
            state_key=text,
        )

    def _vector(self, state: State) -> np.ndarray:
        """One-hot word and number of each line; input, error, wanted result of each test; edits made; last undone."""
        width = len(WORDS) + self._params["numbers"]
        vector = np.zeros(self.vector_size, np.float32)
        for line, statement in enumerate(state.program):
            vector[line * width + WORDS.index(statement.word)] = 1.0
            vector[line * width + len(WORDS) + statement.number - 1] = 1.0
        place = self._params["lines"] * width
        tests: Sequence[tuple[int, int]] = state.problem.tests
        for x, want in tests:
            got = execute(state.program, x)
            vector[place : place + 3] = np.array([x / len(INPUTS), np.tanh((got - want) / 4), np.tanh(want / 10)])
            place += 3
        vector[place:] = np.array([state.done / state.most, float(bool(state.said))])
        return vector
