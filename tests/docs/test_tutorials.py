"""The tutorials are true: (1) every command of a tutorial runs, in the order of the page and beside the files that the
page shows, and prints the lines that stand below it; (2) a line that is not printed is found, and so is a command that
fails without saying so.

Below a command, `…` stands for any lines. Times are not compared. A policy that was trained on another processor than
that of the pins does not do exactly the same. There, (3) numbers, texts in quotes, the measures of a progress line,
verdicts of a comparison and the moves of a trained policy are not compared, and lines that name bfloat16 only where the
processor is fast in it.
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
TIME = re.compile(r"\[\d+:\d\d\]|\((\d+ tokens/s, )?\d+\.\d s(, [\d:]+ left)?\)")
PROGRESS = re.compile(r"(iteration \d+/\d+) .*")
DIFFERENT = re.compile(
    r"""[-+]?\d[\d.,e+-]*|–|not finite|"[^"]*"|'[^']*'|\bhigher|\blower|no difference seen|too few seeds"""
)


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
    """A line without times, space at its ends and, unless `exact`, what another processor makes different."""
    line = TIME.sub("", line).strip()
    return line if exact else " ".join(DIFFERENT.sub("", PROGRESS.sub(r"\1", line)).split())


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
        moves = command.startswith("palaestra play runs/")
        if exact or not moves:
            wrong += [f"{command}: {line}" for line in missing(expected, done.stdout, exact=exact)]
        if done.returncode and (moves or not expected):
            wrong.append(f"{command}: {done.stdout[-500:]}")
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TUTORIALS)
def test_1_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    exact = record._read("machine")["machine"] == record.machine()
    wrong = played(TUTORIALS[name], tmp_path, exact=exact)
    assert not wrong, "\n".join(["not printed:", *wrong])


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


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (
            "[1:15] iteration 40/40  outcome 0.867  turns 7.13  (1024 tokens/s, 1.1 s)",
            "[0:58] iteration 40/40  outcome 0.9  turns 7  cut 1%  entropy 0.5  (3024 tokens/s, 0.9 s, 0:10 left)",
        ),
        (
            "policy/kl               1.27e+15           –  1.27e+15",
            "policy/kl         not finite        3.1  not finite",
        ),
        (
            "ValueError: invalid literal for int() with base 10: ' 15'",
            "ValueError: invalid literal for int() with base 10: ''",
        ),
        (
            "│ mine │     2 │ final │  0.104 │ no difference seen │",
            "│ mine │     2 │ final │ -0.104 │ lower              │",
        ),
    ],
)
def test_3_another_processor(here: str, there: str) -> None:
    assert not missing([here], there, exact=False)
    assert missing([here], there, exact=True)
    assert not missing([here], here, exact=True)


def test_2_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = Page(tmp_path / "page.md", "```console\n$ palaestra envs nowhere\n```\n")
    assert "palaestra envs nowhere" in played(page, tmp_path, exact=True)[0]
