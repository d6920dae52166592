"""Run unit tests against files in a sandbox and report how many passed, as a function and as a tool.

The names of the tests are read from the given tests before anything runs, and each outcome is marked with a secret word
of this run. So code gains nothing if it ends early, prints something like a report, or brings tests of its own. Code
that searches the memory of its own process for the word could still forge a report, because tests and the code that
they test share a process, as in every unit test.
"""

from __future__ import annotations

import ast
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from palaestra.errors import PalaestraError
from palaestra.tools.files import WorkFolder
from palaestra.tools.sandbox import Execution, PythonPool, Sandbox
from palaestra.tools.tool import Tool

Outcome = Literal["passed", "failed", "error", "not run"]
RUNNER = Path(__file__).with_name("unit_test_runner.py").read_text(encoding="utf-8")
PLACE = ".palaestra_tests.py"
SHOWN = 10  # most messages in a report
LETTERS = 300  # most characters of one message


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The outcome of each test, in the order of the tests.

    Args:
        outcomes: test → passed; failed (an assertion did not hold); error (anything else was raised); not run.
        messages: test → why it did not pass, one short line.
        ended: why the process ended before its time; "" if it did not.
    """

    outcomes: Mapping[str, Outcome]
    messages: Mapping[str, str]
    ended: str = ""

    __test__ = False  # keeps pytest from collecting this class

    @property
    def passed(self) -> int:
        """Number of tests that passed."""
        return sum(outcome == "passed" for outcome in self.outcomes.values())

    @property
    def total(self) -> int:
        """Number of tests."""
        return len(self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether all tests passed."""
        return self.passed == self.total

    def text(self) -> str:
        """The report as an agent reads it."""
        lines = [f"{self.passed} of {self.total} tests passed"]
        lines += [self.ended] if self.ended else []
        wrong = [name for name, outcome in self.outcomes.items() if outcome != "passed"]
        for name in wrong[:SHOWN]:
            message = self.messages.get(name, "")
            lines.append(f"{self.outcomes[name]}: {name}" + (f": {message}" if message else ""))
        if len(wrong) > SHOWN:
            lines.append(f"… and {len(wrong) - SHOWN} more")
        return "\n".join(lines)


def run_tests(
    place: Sandbox | PythonPool,
    files: Mapping[str, str | bytes],
    tests: Mapping[str, str],
    *,
    timeout_s: float = 10.0,
    memory_mb: int = 512,
) -> TestReport:
    """Run tests against files.

    Args:
        place: the sandbox or pool in which the tests run.
        files: the files to test, by path. A test file replaces a file of the same path.
        tests: test files, by path. Tests are functions `test_…` without parameters, and methods `test…` of classes
            derived from `TestCase`.
        timeout_s: seconds for all tests together. A test that has not run by then has not passed.

    Raises: PalaestraError, if there is no test, or if a test file is not valid Python.
    """
    names = [name for path, source in tests.items() for name in test_names(path, source)]
    if not names:
        raise PalaestraError(
            where="run_tests",
            what=f"there is no test in {', '.join(tests) or 'no files'}.",
            remedy="Write functions `test_…` without parameters, or classes derived from `unittest.TestCase`.",
        )
    word = secrets.token_hex(16)
    stdin = json.dumps({"word": word, "paths": list(tests)}) + "\n"
    given = {**files, **tests}
    if isinstance(place, PythonPool):
        done = place.run(RUNNER, stdin=stdin, files=given, timeout_s=timeout_s, memory_mb=memory_mb)
    else:
        given[PLACE] = RUNNER
        command = [place.python, "-S", "-P", PLACE]
        done = place.exec(command, stdin=stdin, files=given, timeout_s=timeout_s, memory_mb=memory_mb)
    return _report(names, word, done)


def test_names(path: str, source: str) -> list[str]:
    """The tests that a file defines, as `file::function` or `file::Class.method`. The file is parsed, not run.

    Raises: PalaestraError, if it is not valid Python.
    """
    try:
        tree = ast.parse(source, path)
    except SyntaxError as fault:
        what = f"the test file is not valid Python: {fault}."
        raise PalaestraError(where=f"run_tests: {path}", what=what, remedy="Correct the test file.") from fault
    stem, found = str(PurePosixPath(path).with_suffix("")), []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not node.args.args:
            found.append(f"{stem}::{node.name}")
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("TestCase") for b in node.bases):
            methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef) and m.name.startswith("test")]
            found += [f"{stem}::{node.name}.{name}" for name in methods]
    return found


test_names.__test__ = False  # type: ignore[attr-defined]  # keeps pytest from collecting this function


def unit_tests_tool(
    place: Sandbox | PythonPool, folder: WorkFolder, tests: Mapping[str, str], *, timeout_s: float = 10.0
) -> Tool:
    """The tool `run_tests`, which runs the given tests against the files of the episode."""

    def call() -> str:
        return run_tests(place, folder.contents(), tests, timeout_s=timeout_s).text()

    return Tool(
        name="run_tests",
        description="Run the tests against the files in the work folder.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
        call=call,
        timeout_s=timeout_s + 15,
    )


def _report(names: list[str], word: str, done: Execution) -> TestReport:
    outcomes: dict[str, Outcome] = dict.fromkeys(names, "not run")
    messages: dict[str, str] = {}
    for line in done.out.splitlines():
        if not line.startswith(word):
            continue
        try:
            told = json.loads(line.removeprefix(word))
        except ValueError:
            continue
        name, outcome = str(told.get("test")), told.get("outcome")
        meant = [one for one in names if one == name or (name.endswith("::*") and one.startswith(name[:-1]))]
        for one in meant if outcome in ("passed", "failed", "error") else ():
            outcomes[one] = outcome
            if outcome != "passed":
                messages[one] = " ".join(str(told.get("message", "")).split())[:LETTERS]
    ended = ""
    if done.timed_out:
        ended = "stopped: the time was over"
    elif done.oom:
        ended = "stopped: the memory was used up"
    elif "not run" in outcomes.values():
        ended = "the program ended before all tests had run"
    return TestReport(outcomes=outcomes, messages=messages, ended=ended)
