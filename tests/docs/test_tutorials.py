"""The tutorials are true: (1) every command of a tutorial runs, in the order of the page and beside the files that the
page shows, and prints the lines that stand below it; (2) a line that is not printed is found, and so is a command that
fails without saying so.

Below a command, `…` stands for any lines. Times are not compared. On another processor than that of the pins, numbers
are not compared either, and lines that name bfloat16 only where the processor is fast in it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.models.precision import chosen_dtype
from tests.docs.pages import ROOT, Page, pages
from tests.pins import record

TUTORIALS = {page.path.stem: page for page in pages() if page.path.parent.name == "tutorials"}
TIME = re.compile(r"\[\d+:\d\d\]|\(\d+\.\d s\)")
NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*")


def commands(page: Page) -> list[tuple[str, list[str]]]:
    """Every command of the page's console blocks with the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in "\n".join(block.text for block in page.blocks("console")).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def plain(line: str, *, exact: bool) -> str:
    """A line without times, space at its ends and, unless `exact`, numbers."""
    line = TIME.sub("", line).strip()
    return line if exact else NUMBER.sub("", line)


def missing(expected: list[str], printed: str, *, exact: bool) -> list[str]:
    """The expected lines that are not printed in this order; lines between them are allowed where `…` stands."""
    left = [plain(line, exact=exact) for line in printed.splitlines() if line.strip()]
    wrong, skips = [], False
    for line in expected:
        other = "bfloat16" in line and not exact and chosen_dtype("auto", "cpu") != "bfloat16"
        if line.strip() == "…" or other:
            skips = True
            continue
        wanted = plain(line, exact=exact)
        if wanted not in left or not (skips or left.index(wanted) == 0):
            wrong.append(line)
            continue
        left, skips = left[left.index(wanted) + 1 :], False
    return wrong


def shell(folder: Path) -> dict[str, str]:
    """The environment of a command: `palaestra` and `python` are those of the test."""
    programs = folder / "programs"
    programs.mkdir()
    for name, words in (("palaestra", "-m palaestra"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


def played(page: Page, folder: Path, *, exact: bool) -> list[str]:
    """Run the page; the lines that were expected and not printed, each with its command."""
    place, environment, wrong = folder / "work", shell(folder), []
    place.mkdir()
    for command, expected in commands(page):
        if command.startswith("cd "):
            place = place / command[3:]
            for block in page.blocks("python", "yaml"):  # files of the page that no command has written
                if block.file is not None and not (place / block.file).exists():
                    (place / block.file).write_text(block.text, encoding="utf-8")
            continue
        done = subprocess.run(
            command,
            shell=True,
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        wrong += [f"{command}: {line}" for line in missing(expected, done.stdout, exact=exact)]
        wrong += [f"{command}: {done.stdout[-500:]}"] if done.returncode and not expected else []
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TUTORIALS)
def test_1_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    exact = record._read("machine")["machine"] == record.machine()
    assert not played(TUTORIALS[name], tmp_path, exact=exact)


def test_1_there_are_tutorials() -> None:
    assert {*TUTORIALS} == {"first-run", "own-model", "environment", "method", "failed-run"}
    assert all(len(commands(page)) >= 5 for page in TUTORIALS.values())


def test_2_wrong_lines_are_found() -> None:
    printed = "demonstrations 0/8\n[0:00] iteration 0: success 0.25\nsuccess 0.25 -> 0.50\n"
    assert not missing(["…", "[0:07] iteration 0: success 0.25", "success 0.25 -> 0.50"], printed, exact=True)
    assert missing(["iteration 0: success 0.25"], printed, exact=True)  # it is not the first line, and no dots allow it
    assert missing(["…", "success 0.25 -> 0.51"], printed, exact=True)
    assert not missing(["…", "success 0.25 -> 0.51"], printed, exact=False)
    assert missing(["…", "return 0.25 -> 0.50"], printed, exact=False)
    assert missing(["…", "success 0.25 -> 0.50", "[0:00] iteration 0: success 0.25"], printed, exact=True)


def test_2_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = Page(tmp_path / "page.md", "```console\n$ palaestra envs nowhere\n```\n")
    assert "palaestra envs nowhere" in played(page, tmp_path, exact=True)[0]
