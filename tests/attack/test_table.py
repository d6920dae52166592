"""The table of promises: (1) it counts trials, and one failure breaks a promise; (2) skipped tests are no trials; (3)
tables of several runs are added; (4) every suite that it names is there; (5) it is made by a run of pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.attack.promises import SUBJECTS
from tests.attack.table import NAME, Table, begins, join, paths, suites

ROOT = Path(__file__).parents[2]
RUNS = SUBJECTS["runs"]


def report(
    name: str, text: str = "It holds", *, trials: tuple[int, ...] = (), end: str = "passed", when: str = "call"
) -> Any:
    """One report of pytest."""
    noted = [("promise", [text, "by trying", RUNS]), *(("trials", number) for number in trials)]
    end_of = {"failed": end == "failed", "skipped": end == "skipped"}
    return SimpleNamespace(
        nodeid=name, when=when, user_properties=noted, longrepr=("", 1, "Skipped: no disk"), **end_of
    )


def test_1_trials_and_failures() -> None:
    table = Table()
    for each in (report("a", trials=(2, 3)), report("b"), report("c", "Another"), report("a", when="teardown")):
        table.hear(each)
    row, other = table.sorted()
    assert (row.trials, row.tests, row.state, row.how) == (6, 2, "held", ["by trying"]) and other.trials == 1
    table.hear(report("d", end="failed", when="setup"))
    table.hear(report("d", end="failed", when="teardown"))
    assert row.state == "broken" and row.broken == ["d"] and row.trials == 6


def test_2_skipped() -> None:
    table = Table()
    table.hear(report("a", end="skipped"))
    (row,) = table.sorted()
    assert row.state == "not tried" and row.skipped == {"a": "no disk"} and row.trials == 0


def test_3_tables_are_added(tmp_path: Path) -> None:
    for number, end in enumerate(("passed", "failed")):
        table = Table()
        table.hear(report(f"test{number}", trials=(5,), end=end)), table.hear(report("other", f"Promise {number}"))
        table.write(tmp_path / str(number), {"machine": {}, "seed": number})
    join([str(tmp_path / "0"), str(tmp_path / "1")])
    rows = {row["promise"]: row for row in json.loads((tmp_path / "0" / f"{NAME}.json").read_text())["promises"]}
    assert [*rows] == ["It holds", "Promise 0", "Promise 1"]
    assert rows["It holds"]["trials"] == 5 and rows["It holds"]["state"] == "broken"
    assert "| It holds | by trying | 5 | broken |" in (tmp_path / "0" / f"{NAME}.md").read_text()


def test_4_suites() -> None:
    for suite in suites():
        assert suite["subject"] in SUBJECTS and suite["promise"] and suite["how"], suite
        for test in suite["tests"]:
            file, _, name = test.rstrip("*").partition("::")
            assert (ROOT / file).exists() and f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), test
    assert all((ROOT / path).exists() for path in paths())
    assert (
        begins("a/b.py::c[1]", "a/b.py") and begins("a/b.py::c[1]", "a/b.py::c") and begins("a/b.py::cd", "a/b.py::c*")
    )
    assert not begins("a/b.py::cd", "a/b.py::c") and not begins("a/bc.py::c", "a/b")


TRY = """
import pytest
from tests.attack.promises import promise

@promise("It holds", how="by trying", subject="runs")
@pytest.mark.parametrize("number", [1, 2])
def test_a(number, record_property):
    record_property("trials", number)

@promise("It breaks", how="by trying", subject="texts")
def test_b():
    assert False

def test_c():
    assert False
"""


@pytest.mark.slow
def test_5_a_run(tmp_path: Path) -> None:
    (tmp_path / "test_try.py").write_text(TRY)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "promise", "-p", "tests.attack.table", "-n", "2"]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--promises", str(tmp_path / "found"),
         "--seed", "7", str(tmp_path / "test_try.py")], cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 1 and "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "found" / f"{NAME}.json").read_text())
    assert found["seed"] == 7
    assert [(row["promise"], row["trials"], row["state"]) for row in found["promises"]] == [
        ("It holds", 3, "held"),
        ("It breaks", 0, "broken"),
    ]
