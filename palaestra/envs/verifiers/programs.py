"""A verifier that runs the unit tests of a row on the code of a reply, in a sandbox."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palaestra.errors import PalaestraError, RecipeError
from palaestra.registry import Positive, PositiveInt, register
from palaestra.tools.sandbox import Sandbox, choose
from palaestra.tools.unit_tests import run_tests, test_names

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
SOLUTION, TESTS = "solution.py", "test_solution.py"
Require = Literal["isolation", "none"]


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

    The code is the last Markdown block of the reply, or the whole reply without a block. Tests are a text with
    functions `test_…`, or a list of statements such as `assert add(1, 2) == 3`; they see all names of the code. The
    metric `info/isolated/mean` is 1 if the sandbox keeps the code from the rest of the computer, else 0.

    Args:
        column: column of the tests.
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

    async def __call__(self, completion: str, columns: Mapping[str, Any]) -> dict[str, float]:
        tests = tests_of(columns[self._column])
        if not test_names(TESTS, tests):
            raise ValueError(f"the column `{self._column}` has no test")
        files = {SOLUTION: code_of(completion)}
        report = await asyncio.to_thread(
            run_tests, self._place, files, {TESTS: tests}, timeout_s=self._seconds, memory_mb=self._memory
        )
        score = report.passed / report.total if self._partial else float(report.ok)
        return {"score": score, "isolated": float(self._place.guarantees().isolation == "isolation")}


def code_of(text: str) -> str:
    """The code of a reply: its last Markdown block, or all of it.

    >>> code_of("Here:\\n```python\\nx = 1\\n```\\nDone.")
    'x = 1\\n'
    """
    blocks = BLOCK.findall(text)
    return str(blocks[-1]) if blocks else text


def tests_of(given: str | Sequence[str]) -> str:
    """The text of a test file: as it is given, or with a function for each statement of a list."""
    head = f"from {SOLUTION.removesuffix('.py')} import *\n"
    if isinstance(given, str) and "def test" in given:
        return head + given
    statements = [given] if isinstance(given, str) else list(given)
    return head + "".join(
        f"\ndef test_{number}():\n" + "".join(f"    {line}\n" for line in statement.strip().splitlines())
        for number, statement in enumerate(statements)
    )
