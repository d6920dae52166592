"""A plugin of pytest that makes the table of promises: `pytest -p tests.attack.table --promises FOLDER`.

It counts the trials of tests with the mark `promise` (tests/attack/promises.py), and of the tests that suites.yaml
beside this file lists under a promise. After the run it prints the table and writes `reliability.json` and
`reliability.md` into the folder. It works with pytest-xdist, too.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.attack.promises import SUBJECTS

SUITES = Path(__file__).with_name("suites.yaml")
NAME = "reliability"
MANY = {"kills": 40, "messages": 4_000}  # what `make attack` tries, unless options say otherwise


@dataclass
class Promise:
    """One row of the table."""

    promise: str
    subject: str
    how: list[str] = field(default_factory=list)
    trials: int = 0
    tests: int = 0
    broken: list[str] = field(default_factory=list)  # tests that failed
    skipped: dict[str, str] = field(default_factory=dict)  # test → reason

    @property
    def state(self) -> str:
        """`held`, `broken`, or `not tried`."""
        return "broken" if self.broken else "held" if self.trials else "not tried"


def suites(path: Path = SUITES) -> list[dict[str, Any]]:
    """Promises that other suites try: `promise`, `how`, `subject`, and `tests`, the begins of node ids."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) or []


def promises_of(item: pytest.Item, listed: Iterable[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The promises that a test tries, each with its way and its subject."""
    marks = [(mark.args[0], mark.kwargs["how"], mark.kwargs["subject"]) for mark in item.iter_markers("promise")]
    tried = [suite for suite in listed if any(begins(item.nodeid, test) for test in suite["tests"])]
    return marks + [(suite["promise"], suite["how"], suite["subject"]) for suite in tried]


def begins(nodeid: str, test: str) -> bool:
    """Whether a node id is that of a file, a folder, a test, or a group of tests whose name ends with `*`."""
    if test.endswith("*"):
        return nodeid.startswith(test[:-1])
    return nodeid == test or nodeid.startswith((f"{test}::", f"{test}[", f"{test}/"))


class Table:
    """Collects reports and makes the table."""

    def __init__(self) -> None:
        self.rows: dict[str, Promise] = {}

    def add(self, report: Any) -> None:
        """Count one report of pytest: a failure of any phase, a skip, or a test that passed."""
        noted = list(report.user_properties)
        for text, how, subject in (value for name, value in noted if name == "promise"):
            row = self.rows.setdefault(text, Promise(text, subject))
            if how not in row.how:
                row.how.append(how)
            if report.failed:
                row.broken += [report.nodeid] if report.nodeid not in row.broken else []
            elif report.skipped:
                row.skipped[report.nodeid] = reason_of(report)
            elif report.when == "call":
                row.tests += 1
                row.trials += sum(value for name, value in noted if name == "trials") or 1

    def sorted(self) -> list[Promise]:
        """The rows by subject, then as they came."""
        order = list(SUBJECTS)
        return sorted(self.rows.values(), key=lambda row: (order.index(row.subject), row.promise))

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        return {**about, "promises": [{**asdict(row), "state": row.state} for row in self.sorted()]}


def reason_of(report: Any) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def markdown(content: dict[str, Any]) -> str:
    """The table for each subject, as text of a page."""
    parts = []
    for subject, title in SUBJECTS.items():
        rows = [row for row in content["promises"] if row["subject"] == subject]
        if rows:
            lines = [
                f"| {row['promise']} | {'; '.join(row['how'])} | {row['trials']:,} | {row['state']} |" for row in rows
            ]
            parts.append(
                "\n".join([f"### {title}", "", "| promise | how it is tried | trials | |", "|---|---|--:|---|", *lines])
            )
    return "\n\n".join(parts) + "\n"


def machine() -> dict[str, Any]:
    """What the trials ran on."""
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = suites()
    for item in items:
        item.user_properties += [("promise", each) for each in promises_of(item, listed)]


class Reporter:
    """Runs where the reports come together."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.table = config, Table()

    def pytest_report_header(self) -> str:
        return f"promises: seed {self.config.option.seed}, {self.config.option.kills} kills"

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.table.add(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        folder = self.config.getoption("--promises")
        if not folder or not self.table.rows:
            return
        options = {name: getattr(self.config.option, name) for name in ("seed", "kills", "messages")}
        content = self.table.to_json({"machine": machine(), **options})
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{NAME}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (place / f"{NAME}.md").write_text(markdown(content), encoding="utf-8")
        terminalreporter.section("promises")
        for row in self.table.sorted():
            terminalreporter.write_line(f"{row.state:>9}  {row.trials:>6,}  {row.promise}")
        terminalreporter.write_line(f"written: {place / NAME}.json, {place / NAME}.md")


if __name__ == "__main__":  # a table from a JSON: `python -m tests.attack.table reliability.json`
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
