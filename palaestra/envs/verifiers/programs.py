"""A verifier that runs the tests of a row on the code of a reply, in a sandbox: unit tests, or inputs and outputs."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palaestra.errors import PalaestraError, RecipeError
from palaestra.registry import Positive, PositiveInt, register
from palaestra.tools.sandbox import Sandbox, choose
from palaestra.tools.unit_tests import run_tests, test_names

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
SOLUTION, TESTS = "solution.py", "test_solution.py"
Require = Literal["isolation", "none"]
Pair = tuple[str, str]  # what a program reads, and what it must print
CALLED = """import {module}

def check(given, wanted):
    owner = {module}.Solution() if hasattr({module}, "Solution") else {module}
    said = plain(getattr(owner, {name!r})(*given))
    assert said == wanted or [said] == wanted, f"{{said!r}} is not {{wanted!r}}"

def plain(value):
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value
"""  # some data sets put each output into a list of one item


@functools.cache
def place(require: Require) -> Sandbox:
    """The sandbox that all episodes of a process share.

    Raises: RecipeError, if this computer has none that is strong enough.
    """
    try:
        return choose(require=require)
    except PalaestraError as fault:
        raise RecipeError(
            where="verifier code, require",
            what=f"replies cannot be isolated on this computer. {fault.what}",
            remedy=f"{fault.remedy}\nFor code that you trust, set `require: none`.",
        ) from fault


@register("verifier", "code")
class Code:
    """Run the row's tests on the code of the reply: the share of tests that pass, or 1 only if all pass.

    The code is the last Markdown block of the reply, or the whole reply without a block. The column of the tests holds
    one of these, as values or as JSON text:

    - a text with functions `test_…`, or a list of statements such as `assert add(1, 2) == 3`. They see all names of the
      code;
    - `{"inputs": [...], "outputs": [...]}`, as in APPS and verl, or a list of `{"input": …, "output": …}`. The code is
      a program: it reads an input and prints the output. Spaces at the ends of lines make no difference;
    - the same with `fn_name`: the function of this name, or the method of a class `Solution`, is called with the list
      of arguments that an input holds, and must return the output.

    The metric `info/isolated/mean` is 1 if the sandbox keeps the code from the rest of the computer, else 0.

    Args:
        column: column of the tests. If the data have no such column, the right answer is the test, as in verl. The
            verifier does not apply to a row in which the column is empty.
        partial: whether the share of tests that pass counts; False: 1 if all pass, else 0.
        seconds: for all tests of a reply together. Tests that have not run by then fail.
        memory_mb: most memory of the code.
        require: "isolation" refuses to run without a sandbox that isolates; "none": for code that you trust.

    Raises: RecipeError, without a sandbox of this kind.
    """

    def __init__(
        self,
        *,
        column: str = "tests",
        partial: bool = False,
        seconds: Positive = 10.0,
        memory_mb: PositiveInt = 512,
        require: Require = "isolation",
    ) -> None:
        self._column, self._partial, self._seconds, self._memory = column, partial, seconds, memory_mb
        self._place = place(require)

    async def __call__(self, completion: str, columns: Mapping[str, Any]) -> dict[str, float] | None:
        given = columns.get(self._column, columns.get("answer"))
        if given is None and self._column in columns:  # a row of another kind
            return None
        if given is None:
            raise ValueError(f"the row has no column `{self._column}`")
        tests, code = tests_of(given, self._column), code_of(completion)
        passed = await asyncio.to_thread(self._passed, code, tests)
        score = passed if self._partial else float(passed == 1)
        return {"score": score, "isolated": float(self._place.guarantees().isolation == "isolation")}

    def _passed(self, code: str, tests: str | Sequence[Pair]) -> float:
        """The share of tests that pass. Without `partial`, pairs after the first that fails are not run."""
        if isinstance(tests, str):
            report = run_tests(
                self._place, {SOLUTION: code}, {TESTS: tests}, timeout_s=self._seconds, memory_mb=self._memory
            )
            return report.passed / report.total
        passed, end = 0, time.monotonic() + self._seconds
        for given, wanted in tests:
            left = end - time.monotonic()
            if left > 0 and self._prints(code, given, wanted, left):
                passed += 1
            elif not self._partial:
                break
        return passed / len(tests)

    def _prints(self, code: str, given: str, wanted: str, seconds: float) -> bool:
        """Whether the program ends without an error and prints what is wanted, which never enters the sandbox."""
        command = [self._place.python, SOLUTION]
        done = self._place.exec(command, stdin=given, files={SOLUTION: code}, timeout_s=seconds, memory_mb=self._memory)
        return done.ok and not done.truncated and lines_of(done.out) == lines_of(wanted)


def code_of(text: str) -> str:
    """The code of a reply: its last Markdown block, or all of it.

    >>> code_of("Here:\\n```python\\nx = 1\\n```\\nDone.")
    'x = 1\\n'
    """
    blocks = BLOCK.findall(text)
    return str(blocks[-1]) if blocks else text


def tests_of(given: Any, column: str = "tests") -> str | list[Pair]:
    """The text of a test file, or the pairs of input and output of a program.

    Raises: ValueError, if there is no test, or if they have none of the forms.
    """
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        try:
            given = json.loads(given)
        except ValueError:
            pass  # statements may begin with a bracket, too
    if isinstance(given, Mapping):
        pairs = _zipped(given, column)
        return _called(str(given["fn_name"]), pairs) if given.get("fn_name") else [_texts(pair) for pair in pairs]
    if not isinstance(given, str | list | tuple):
        raise ValueError(f"the column `{column}` has tests of an unknown form")
    rows: list[Any] = [given] if isinstance(given, str) else list(given)
    if rows and all(isinstance(row, Mapping) and {"input", "output"} <= row.keys() for row in rows):
        pairs = [(row["input"], row["output"]) for row in rows]
        named = rows[0].get("fn_name")
        return _called(str(named), pairs) if named else [_texts(pair) for pair in pairs]
    if not all(isinstance(row, str) for row in rows):
        raise ValueError(f"the column `{column}` has tests of an unknown form")
    head = f"from {SOLUTION.removesuffix('.py')} import *\n"
    if isinstance(given, str) and "def test" in given:
        tests = head + given
    else:
        tests = head + "".join(
            f"\ndef test_{number}():\n" + "".join(f"    {line}\n" for line in statement.strip().splitlines())
            for number, statement in enumerate(rows)
        )
    if not test_names(TESTS, tests):
        raise ValueError(f"the column `{column}` has no test")
    return tests


def lines_of(text: str) -> list[str]:
    """The lines of an output as they are compared: without spaces at their ends, and without empty ones."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _zipped(given: Mapping[str, Any], column: str) -> list[tuple[Any, Any]]:
    """The pairs of `inputs` and `outputs`. Raises: ValueError, if these are no lists of one length, or empty."""
    inputs, outputs = given.get("inputs"), given.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"the column `{column}` has no lists `inputs` and `outputs`; it has {', '.join(given)}")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"the column `{column}` has {len(inputs)} inputs and {len(outputs)} outputs")
    return list(zip(inputs, outputs, strict=True))


def _texts(pair: tuple[Any, Any]) -> Pair:
    """What a program reads and prints. A list is one line for each item, as in some data sets."""
    given, wanted = ("\n".join(map(str, one)) if isinstance(one, list) else str(one) for one in pair)
    return given, wanted


def _called(name: str, pairs: Sequence[tuple[Any, Any]]) -> str:
    """The text of a test file that calls a function, or a method of `Solution`, with the arguments of each input."""
    read = [
        (_arguments(given), json.loads(out) if isinstance(out, str) and _is_json(out) else out) for given, out in pairs
    ]
    return CALLED.format(module=SOLUTION.removesuffix(".py"), name=name) + "".join(
        f"\ndef test_{number}():\n    check({given!r}, {wanted!r})\n" for number, (given, wanted) in enumerate(read)
    )


def _arguments(given: Any) -> list[Any]:
    """The arguments of a call: a list, or a text with a JSON value in each line, as in TACO and LiveCodeBench."""
    if isinstance(given, str):
        return [json.loads(line) if _is_json(line) else line for line in given.splitlines() if line.strip()]
    return list(given) if isinstance(given, list) else [given]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
