"""A plugin of pytest that makes the table of promises: `pytest -p tests.attack.table --promises FOLDER`.

It counts the trials of tests with the mark `promise` (tests/attack/promises.py), and of the tests that suites.yaml
beside this file lists under a promise. After the run it prints the table and writes `reliability.json` and
`reliability.md` into the folder. It works with pytest-xdist, too.

    python -m tests.attack.table paths                   the files of the tests that belong to the table
    python -m tests.attack.table join FOLDER FOLDER …    the tables of several runs as one, in the first folder
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.attack.promises import SUBJECTS, promise

SUITES = Path(__file__).with_name("suites.yaml")
NAME = "reliability"
MANY = {"kills": 40, "messages": 4_000}  # what `make attack` tries, unless options say otherwise


@dataclass
class Promise:
    """One row of the table. `tests`: how many passed. `broken`: those that failed. `skipped`: their reasons."""

    promise: str
    subject: str
    how: list[str] = field(default_factory=list)
    trials: int = 0
    tests: int = 0
    broken: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """`held`, `broken`, or `not tried`."""
        return "broken" if self.broken else "held" if self.trials else "not tried"

    def add(self, other: Promise) -> None:
        """Add the trials of another run."""
        self.how += [how for how in other.how if how not in self.how]
        self.broken += [test for test in other.broken if test not in self.broken]
        self.trials, self.tests, self.skipped = (
            self.trials + other.trials,
            self.tests + other.tests,
            self.skipped | other.skipped,
        )


def suites(path: Path = SUITES) -> list[dict[str, Any]]:
    """Promises that tests of other folders try: `promise`, `how`, `subject`, `tests` and, if theirs count, `slow`."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def marks_of(item: pytest.Item, listed: Iterable[dict[str, Any]]) -> list[pytest.Mark]:
    """The marks of the promises that a test tries. A test with one is run even if it is slow."""
    for suite in listed:
        counts = suite.get("slow") or not item.get_closest_marker("slow")
        if counts and any(begins(item.nodeid, test) for test in suite["tests"]):
            item.add_marker(promise(suite["promise"], how=suite["how"], subject=suite["subject"]))
    return list(item.iter_markers("promise"))


def begins(nodeid: str, test: str) -> bool:
    """Whether a node id is in a file, a folder or a test, or begins with a text that ends with `*`."""
    if test.endswith("*"):
        return nodeid.startswith(test[:-1])
    return nodeid == test or nodeid.startswith((f"{test}::", f"{test}[", f"{test}/"))


class Table:
    """Collects reports, and makes the table."""

    def __init__(self) -> None:
        self.rows: dict[str, Promise] = {}

    def add(self, row: Promise) -> None:
        self.rows.setdefault(row.promise, Promise(row.promise, row.subject)).add(row)

    def hear(self, report: Any) -> None:
        """Count one report of pytest: a failure of any phase, a skip, or a test that passed."""
        noted = list(report.user_properties)
        for text, how, subject in (value for name, value in noted if name == "promise"):
            row = Promise(text, subject, [how])
            if report.failed:
                row.broken = [report.nodeid]
            elif report.skipped:
                row.skipped = {report.nodeid: reason_of(report)}
            elif report.when == "call":
                row.tests, row.trials = 1, sum(value for name, value in noted if name == "trials") or 1
            self.add(row)

    def sorted(self) -> list[Promise]:
        """The rows by subject, then as they came."""
        order = list(SUBJECTS.values())
        return sorted(self.rows.values(), key=lambda row: order.index(row.subject))

    def write(self, folder: Path, about: dict[str, Any]) -> None:
        """Write the table as JSON and as Markdown."""
        from site_pages.reliability import reliability_tables  # docs/ is on the path by now

        content = {**about, "promises": [{**asdict(row), "state": row.state} for row in self.sorted()]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{NAME}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / f"{NAME}.md").write_text(reliability_tables(content), encoding="utf-8")


def reason_of(report: Any) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def machine() -> dict[str, Any]:
    """What the trials ran on."""
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


def join(folders: Sequence[str]) -> None:
    """Add the tables of several runs up, in the first folder."""
    table, about = Table(), {}
    for folder in folders:
        about = json.loads((Path(folder) / f"{NAME}.json").read_text(encoding="utf-8"))
        for row in about.pop("promises"):
            row.pop("state")
            table.add(Promise(**row))
    table.write(Path(folders[0]), {"machine": about["machine"]})


def paths() -> list[str]:
    """The files of the tests in the table."""
    named = [test.partition("::")[0] for suite in suites() for test in suite["tests"]]
    return list(dict.fromkeys(["tests/attack", *named]))


# ---- hooks of pytest --------------------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("promises")
    group.addoption("--promises", metavar="FOLDER", help="try the promises often, and write their table here")
    group.addoption("--seed", type=int, default=0, help="of the moments and texts that are drawn; 0: another each time")
    group.addoption("--kills", type=int, default=MANY["kills"], help="runs that are killed, over all kinds of recipes")
    group.addoption("--messages", type=int, default=MANY["messages"], help="fuzzed calls of tools and observations")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--seed"):
        worker = getattr(config, "workerinput", {})
        config.option.seed = worker.get("promise_seed") or random.SystemRandom().randrange(1, 10**6)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(config), "promises-reporter")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    node.workerinput["promise_seed"] = node.config.option.seed


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = suites()
    for item in items:
        for mark in marks_of(item, listed):
            item.user_properties.append(
                ("promise", [mark.args[0], mark.kwargs["how"], SUBJECTS[mark.kwargs["subject"]]])
            )


class Reporter:
    """Runs where the reports come together."""

    def __init__(self, config: pytest.Config) -> None:
        self.options, self.table = config.option, Table()

    def pytest_report_header(self) -> str:
        return f"promises: --seed {self.options.seed} --kills {self.options.kills} --messages {self.options.messages}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.table.hear(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.options.promises or not self.table.rows:
            return
        self.table.write(Path(self.options.promises), {"machine": machine(), "seed": self.options.seed})
        terminalreporter.section("promises")
        for row in self.table.sorted():
            terminalreporter.write_line(f"{row.state:>9}  {row.trials:>6,}  {row.promise}")
        terminalreporter.write_line(f"written: {NAME}.json and {NAME}.md in {self.options.promises}")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2] / "docs"))
    if sys.argv[1] == "join":
        join(sys.argv[2:])
    else:
        print(*paths())
