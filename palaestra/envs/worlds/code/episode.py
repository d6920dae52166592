"""The state of an episode, what each act does to it, which code has to run for an act, and the expert's next act."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from palaestra.envs.worlds.code.acts import Act
from palaestra.envs.worlds.code.judging import Job, Verdict, calls, judged, printed, readable, worked_out
from palaestra.envs.worlds.code.problems import MODULE, Problem, Test, program
from palaestra.envs.worlds.code.repository import Files, Repository, line_of
from palaestra.tools.sandbox import Execution

NAMED = re.compile(r"[a-z][a-z_]{0,20}\.py")
MOST_FILES = 12
FAILING = 3  # failed tests that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. It cannot be changed, so a snapshot is the state itself.

    Attributes:
        short: programs are expressions of the grammar, which need no sandbox.
        code: the last program.
        files: the files of a repository.
        opened: names of the files that the agent has read.
        tested: whether the visible tests have run since the last change.
        said: what the agent reads about its last act.
    """

    task: Problem | Repository
    seed: int
    short: bool
    turn: int = 0
    code: str = ""
    files: Files = ()
    opened: frozenset[str] = field(default_factory=frozenset)
    tested: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an act needs: a job to run or an expression to evaluate, and tests that judge it.

    Attributes:
        state: the state after the act, without the result of the tests.
        tests: the tests; empty if only the output of the program counts.
        final: whether they are the hidden tests.
        fault: why the act cannot be done. Nothing runs then.
    """

    state: State
    job: Job | None = None
    tests: tuple[Test, ...] = ()
    expression: str = ""
    final: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of an act.

    Attributes:
        fine: whether the act could be done.
        passed: share of the hidden tests that pass; None as long as the agent has not submitted.
    """

    state: State
    fine: bool
    passed: float | None = None


def plan(state: State, act: Act) -> Plan:
    """Plan an act. Nothing runs here."""
    if isinstance(state.task, Repository):
        return _plan_files(state, state.task, act)
    task, code = state.task, act.code or state.code
    if not code:
        return Plan(state=state, fault="there is no program yet")
    if state.short and not readable(code):
        return Plan(state=state, fault="not understood")
    tests = {"submit": task.hidden, "run": ()}.get(act.name, task.visible)
    tested = act.name in ("try", "test") or (act.name == "submit" and state.tested and code == state.code)
    after = replace(state, code=code, tested=tested)
    if state.short:
        return Plan(state=after, expression=code, tests=tests, final=act.name == "submit")
    job = Job(code) if act.name == "run" else calls({f"{MODULE}.py": code}, tests)
    return Plan(state=after, job=job, tests=tests, final=act.name == "submit")


def settle(planned: Plan, done: Execution | None) -> Effect:
    """The result of a planned act. `done`: the result of its job, if it has one."""
    state = planned.state
    if planned.fault:
        return Effect(replace(state, said=planned.fault), False)
    if planned.expression:
        return _told(planned, worked_out(planned.expression, planned.tests))
    if done is None:
        return Effect(state, True)
    if not planned.tests:
        return Effect(replace(state, said=printed(done)), True)
    return _told(planned, judged(done, planned.tests))


def fails(state: State, act: Act) -> Effect:
    """The result of an act while the machine fails: nothing runs."""
    code = act.code if not isinstance(state.task, Repository) and act.code else state.code
    tested = state.tested and code == state.code
    return Effect(replace(state, code=code, tested=tested, said="the machine failed, nothing ran"), False)


def _told(planned: Plan, verdicts: Sequence[Verdict]) -> Effect:
    passed = sum(one.passed for one in verdicts) / len(verdicts)
    if planned.final:
        return Effect(replace(planned.state, said="submitted"), True, passed)
    failing = [one for one in verdicts if not one.passed]
    if planned.expression:
        results = ", ".join(f"{one.test.x!r} gives {one.got}" for one in failing[:FAILING])
        said = f"tried {planned.expression}. {results or 'all pass'}"
    else:
        lines = [f"{len(verdicts) - len(failing)} of {len(verdicts)} tests pass"]
        lines += [f"{one.test.call} gave {one.got}, want {one.test.want!r}" for one in failing[:FAILING]]
        said = "\n".join(lines)
    return Effect(replace(planned.state, said=said), True)


# ---- repositories -----------------------------------------------------------------------------------------
def _plan_files(state: State, task: Repository, act: Act) -> Plan:
    files = dict(state.files)
    if act.name in ("test", "submit"):
        final = act.name == "submit"
        tests = task.hidden if final else task.visible
        after = replace(state, tested=state.tested or not final)
        return Plan(state=after, job=calls(files, tests), tests=tests, final=final)
    if act.name == "list":
        return Plan(state=replace(state, said=" ".join(files)))
    if act.name == "write":
        if not NAMED.fullmatch(act.file) or (act.file not in files and len(files) >= MOST_FILES):
            return Plan(state=state, fault=f"{act.file} cannot be written")
        return Plan(state=_changed(state, act.file, act.code if act.code.endswith("\n") else f"{act.code}\n"))
    if act.file not in files:
        return Plan(state=state, fault=f"there is no file {act.file}")
    lines = files[act.file].splitlines()
    if act.name == "read":
        listing = "\n".join(f"{number} {line}" for number, line in enumerate(lines, start=1))
        return Plan(state=replace(state, opened=state.opened | {act.file}, said=f"{act.file}\n{listing}"))
    if not 1 <= act.line <= len(lines):
        return Plan(state=state, fault=f"{act.file} has no line {act.line}")
    if len(act.code.splitlines()) > 1:
        return Plan(state=state, fault="a line is one line")
    before = lines[act.line - 1]
    margin = before[: len(before) - len(before.lstrip())]
    # A line without indentation gets the indentation of the old line.
    lines[act.line - 1] = act.code if act.code[:1].isspace() else margin + act.code
    return Plan(state=_changed(state, act.file, "\n".join(lines) + "\n"))


def _changed(state: State, path: str, text: str) -> State:
    files = dict(state.files) | {path: text}
    return replace(state, files=tuple(files.items()), tested=False, said=f"{path} changed")


# ---- what a good agent does, and what can be done ---------------------------------------------------------
def next_act(state: State, left: int) -> Act:
    """The act of an expert who knows the reference. `left`: turns that are left."""
    if isinstance(state.task, Repository):
        return _mend(state, state.task, left)
    if not state.short:
        return Act("submit", program(state.task.reference))
    if state.code == state.task.reference:
        return Act("submit")
    return Act("try" if left > 1 else "submit", state.task.reference)


def sensible(state: State) -> list[Act]:
    """Legal acts, good and bad."""
    task = state.task
    if isinstance(task, Repository):
        files = [Act("read", file=path) for path, _ in state.files]
        edits = [Act("replace", line.strip(), *place) for place, lines in task.choices.items() for line in lines]
        return [Act("list"), *files, *edits, Act("test"), Act("submit")]
    choices = sorted((task.reference, *task.mutants))  # so that the right one is not always the first
    if state.short:
        return [*(Act("try", text) for text in choices), Act("submit")]
    return [Act(name, program(text)) for text in choices for name in ("run", "test", "submit")]


def _mend(state: State, task: Repository, left: int) -> Act:
    right, files = dict(task.right), dict(state.files)
    for path, wanted in right.items():
        if files[path] == wanted:
            continue
        now, then = files[path].splitlines(), wanted.splitlines()
        places = [number for number, pair in enumerate(zip(now, then, strict=False), start=1) if pair[0] != pair[1]]
        if path not in state.opened and left > 2:
            return Act("read", file=path)
        if len(now) != len(then) or len(places) != 1 or not then[places[0] - 1].strip():
            return Act("write", wanted, path)
        line = then[places[0] - 1]
        margin = line_of(state.files, (path, places[0]))[:4].isspace() and line[:1].isspace()
        return Act("replace", line.strip() if margin else line, path, places[0])
    return Act("submit" if state.tested or left <= 1 else "test")
