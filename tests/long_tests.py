"""The tests that `make test` leaves to `make smoke` because they take long. They stand in tests/long.txt, one a line: a
whole function, or one of its cases.

After tests were added or became slower, write the list anew, on a machine that does nothing else:

    python -m pytest -n 2 -m "not slow and not smoke" --durations=0 --durations-min=0.05 > durations.log
    python -m tests.long_tests durations.log
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("long.txt")
LONG = 0.5  # seconds of a test's call and of what ends after it


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of the list as `long`."""
    long = frozenset(listed())
    for item in items:
        if item.nodeid in long or function_of(item.nodeid) in long:
            item.add_marker("long")


def listed() -> list[str]:
    return LISTED.read_text(encoding="utf-8").splitlines()


def function_of(test: str) -> str:
    """`file.py::function` of `file.py::function[case]`."""
    return re.sub(r"(::\w+)\[.*", r"\1", test, flags=re.DOTALL)


def long_ones(log: str) -> list[str]:
    """The lines of the list, from what pytest has written. A function is named whole if half of its cases are long.

    >>> long_ones("0.70s call a.py::f[1]\\n0.10s call a.py::f[2]\\n0.10s call a.py::f[3]\\n9.00s call a.py::g[x y]")
    ['a.py::f[1]', 'a.py::g']
    """
    functions = defaultdict[str, dict[str, float]](dict)
    for seconds, test in re.findall(r"^([\d.]+)s (?:call|teardown) +(\S.*)$", log, flags=re.MULTILINE):
        cases = functions[function_of(test)]
        cases[test] = cases.get(test, 0.0) + float(seconds)
    found = []
    for function, cases in functions.items():
        long = [test for test, seconds in cases.items() if seconds >= LONG]
        found += [function] if 2 * len(long) >= len(cases) else long
    return sorted(found)


if __name__ == "__main__":
    new = long_ones(Path(sys.argv[1]).read_text(encoding="utf-8"))
    LISTED.write_text("".join(f"{line}\n" for line in new), encoding="utf-8")
