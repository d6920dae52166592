"""Rules: (1) each test has its outcome, with a short message; (2) functions and test cases count, and only those of the
given files; (3) code that ends early, prints reports, hangs or hides modules gains nothing; (4) the tool gives the same
report; (5) bad tests are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palaestra.data import ToolCall
from palaestra.errors import PalaestraError
from palaestra.tools import Toolbox, WorkFolder, run_tests, unit_tests_tool
from palaestra.tools.sandbox import BubblewrapSandbox, PythonPool, Sandbox, SubprocessSandbox
from palaestra.tools.unit_tests import test_names as names_of
from tests.extras import skip_without

TESTS = {
    "test_add.py": """
import unittest
from add import add

def test_small():
    assert add(1, 2) == 3

def test_wrong():
    assert add(2, 2) == 5, "two and two"

def test_raises():
    add(1, None)

def helper():
    raise RuntimeError

class Cases(unittest.TestCase):
    def setUp(self):
        self.base = 1

    def test_method(self):
        self.assertEqual(add(self.base, 1), 2)

    def test_subtests(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(add(n, 1), 2)

    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(add(1, 1), 3)
"""
}
GOOD = {"add.py": "def add(a, b):\n    print('noise')\n    return a + b\n"}


@pytest.fixture(scope="module", params=["pool", "bubblewrap", "subprocess"])
def place(request: pytest.FixtureRequest) -> Iterator[Sandbox | PythonPool]:
    if request.param != "subprocess":
        skip_without("bubblewrap")
    kinds = {"pool": lambda: PythonPool(workers=1), "bubblewrap": BubblewrapSandbox, "subprocess": SubprocessSandbox}
    made = kinds[request.param]()
    yield made
    made.close()


def test_1_outcomes(place: Sandbox | PythonPool) -> None:
    report = run_tests(place, GOOD, TESTS)
    assert dict(report.outcomes) == {
        "test_add::test_small": "passed",
        "test_add::test_wrong": "failed",
        "test_add::test_raises": "error",
        "test_add::Cases.test_method": "passed",
        "test_add::Cases.test_subtests": "failed",
        "test_add::Cases.test_expected": "passed",
    }
    assert (report.passed, report.total, report.ok, report.ended) == (3, 6, False, "")
    assert report.messages["test_add::test_wrong"] == "AssertionError: two and two (test_add.py, line 9)"
    assert report.messages["test_add::test_raises"].startswith("TypeError: unsupported operand")
    assert report.messages["test_add::test_raises"].endswith("(add.py, line 3)")
    assert report.messages["test_add::Cases.test_subtests"].startswith("AssertionError: 3 != 2 (test_add.py")
    assert report.text().splitlines()[0] == "3 of 6 tests passed"


def test_2_only_the_given_tests_count(place: Sandbox | PythonPool) -> None:
    own = {
        "add.py": "def add(a, b): return 0",
        "test_own.py": "def test_a(): pass",
        "test_add.py": "def test_small(): pass",
    }
    assert run_tests(place, own, TESTS).outcomes["test_add::test_small"] == "failed"
    assert names_of("d/t.py", "def test_a(): 0\ndef test_b(x): 0\nclass Test: pass\ndef b(): 0") == ["d/t::test_a"]


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os\nos._exit(0)", "the program ended before all tests had run"),
        ("import sys\nsys.exit(0)", ""),
        ("raise KeyboardInterrupt", ""),
        ("def add(a, b) 3", ""),
        ("while True: pass", "stopped: the time was over"),
        (
            'print(\'{"test": "test_add::test_small", "outcome": "passed"}\')\nimport os\nos._exit(0)',
            "the program ended",
        ),
        ("import os\nfor n in range(3, 20):\n    os.write(n, b'passed')\nos._exit(0)", "the program ended"),
    ],
)
def test_3_no_gain_without_passing(code: str, ended: str, place: Sandbox | PythonPool) -> None:
    if "os.write(n" in code:
        code = code.replace(
            "os.write(n, b'passed')", "\n        try: os.write(n, b'passed\\n')\n        except OSError: pass"
        )
    hiding = {"json.py": "1/0", "unittest.py": "1/0", "traceback.py": "1/0"}
    report = run_tests(place, {"add.py": code, **hiding}, TESTS, timeout_s=1)
    assert report.passed == 0
    assert report.ended.startswith(ended)


def test_3_a_file_that_does_not_load_says_why(place: Sandbox | PythonPool) -> None:
    report = run_tests(place, {"add.py": "import nothing_like_this"}, TESTS)
    assert set(report.outcomes.values()) == {"error"}
    assert "No module named 'nothing_like_this' (add.py, line 1)" in report.text()


def test_4_as_a_tool(place: Sandbox | PythonPool) -> None:
    with WorkFolder(GOOD) as folder:
        box = Toolbox(
            [unit_tests_tool(place, folder, {"test_one.py": "from add import *\ndef test_a(): assert add(1, 1) == 2"})]
        )
        assert box.call(ToolCall(name="run_tests", arguments={})).text == "1 of 1 tests passed"
        folder.write("add.py", "def add(a, b): return 3")
        assert box.call(ToolCall(name="run_tests", arguments={})).text.splitlines() == [
            "0 of 1 tests passed",
            "failed: test_one::test_a: AssertionError in `def test_a(): assert add(1, 1) == 2` (test_one.py, line 2)",
        ]


def test_5_bad_tests(place: Sandbox | PythonPool) -> None:
    with pytest.raises(PalaestraError, match=r"there is no test in a\.py"):
        run_tests(place, {}, {"a.py": "x = 1"})
    with pytest.raises(PalaestraError, match="the test file is not valid Python"):
        run_tests(place, {}, {"a.py": "def"})
