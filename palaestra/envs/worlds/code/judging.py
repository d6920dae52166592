"""Judging: what a sandbox runs for some tests, and which of them the results pass.

Results are compared here, outside of the sandbox, so that a submission never sees what a test expects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.envs.worlds.code.grammar import Fault, Unreadable, evaluate, read
from palaestra.envs.worlds.code.problems import Test
from palaestra.tools.python import cut, short_traceback
from palaestra.tools.sandbox import Execution

CALLER = Path(__file__).with_name("caller.py").read_text(encoding="utf-8")
SHOWN = 60  # characters of a value
OUTPUT = 400  # characters of what a program printed
WHY = {"time": "out of time", "cpu": "out of time", "memory": "out of memory", "output": "too much output"}


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run. Equal jobs have equal results if the program is deterministic."""

    code: str
    stdin: str = ""
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one test. `got`: what the submission gave, or why it gave nothing."""

    test: Test
    passed: bool
    got: str


def calls(files: Mapping[str, str], tests: Sequence[Test]) -> Job:
    """The job that makes the calls of the tests. It does not contain the expected values."""
    asked = [[test.module, test.function, test.x] for test in tests]
    return Job(CALLER, json.dumps(asked), tuple(files.items()))


def judged(done: Execution, tests: Sequence[Test]) -> list[Verdict]:
    """Compare the results with the tests. A submission that a limit ended, or that ended early, passes nothing."""
    answers = _answers(done, len(tests))
    if answers is None:
        why = WHY.get(done.killed_by or "", "the program ended early")
        return [Verdict(test, False, why) for test in tests]
    return [_verdict(test, answer) for test, answer in zip(tests, answers, strict=True)]


def worked_out(expression: str, tests: Sequence[Test]) -> list[Verdict]:
    """Evaluate an expression of the grammar, without a sandbox, and compare it with the tests. Raises: Unreadable."""
    tree = read(expression)
    found = []
    for test in tests:
        try:
            value = evaluate(tree, test.x)
            found.append(Verdict(test, same(value, test.want), shown(value)))
        except Fault as fault:
            found.append(Verdict(test, False, str(fault)))
    return found


def readable(expression: str) -> bool:
    """Whether a text is an expression of the grammar."""
    try:
        read(expression)
    except Unreadable:
        return False
    return True


def same(got: Any, want: Any) -> bool:
    """Whether two values are equal and of the same type: neither True nor 1.0 is the same as 1."""
    if type(got) is not type(want):
        return False
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    return bool(got == want)


def shown(value: Any) -> str:
    """A value as the agent reads it, at most `SHOWN` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits
        return "a huge value"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def printed(done: Execution) -> str:
    """The output and the error of a program, at most `OUTPUT` characters."""
    parts = [done.out.rstrip(), short_traceback(done.err.rstrip()), WHY.get(done.killed_by or "", "")]
    return cut("\n".join(part for part in parts if part), OUTPUT) or "(no output)"


def _answers(done: Execution, count: int) -> list[Any] | None:
    """The answers that the process printed, any JSON values; None if they are missing or too few or too many."""
    if done.rc != 0 or done.killed_by or done.truncated:
        return None
    try:
        told = json.loads(done.out.rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, list) and len(told) == count else None


def _verdict(test: Test, answer: Any) -> Verdict:
    if isinstance(answer, dict) and "value" in answer:
        value = answer["value"]
        return Verdict(test, same(value, test.want), shown(value))
    error = answer.get("error") if isinstance(answer, dict) else None
    return Verdict(test, False, _line(error) if isinstance(error, str) else "no value")


def _line(text: str) -> str:
    """One short line of valid UTF-8, whatever the submission wrote."""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:SHOWN]
