"""Names and words: (1) no module is called after having no subject; (2) no text names a method by a number of
some list instead of its name and arXiv number, a place of one machine, or a paper of the makers; (3) American
spelling; (4) changelog fragments are called `<subject>.<kind>.md`.
"""

from __future__ import annotations

import re

import pytest

from tests.house.source_text import ROOT, python_files, shown, text_files

EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
# Written in pieces, so that this file does not contain what it forbids.
UNKNOWN_TO_READERS = [r"\bS" + r"\d{3}\b", r"\bB" + r"0\d\b", "/wor" + "k/", r"\.libr" + "ary/", "EXEMP" + r"LARS\.md"]
UNKNOWN_TO_READERS += ["DESI" + r"GN\.md", "PEE" + r"RS\.md"]
BRITISH = [
    "behavio" + "ur",
    "colo" + "ur",
    "neighbo" + "ur",
    "favo" + "ur",
    "hono" + "ur",
    "lice" + "nce",
    "cent" + "re",
]
BRITISH += [
    "analy" + "se",
    r"(?:normal|optim|standard|initial|token|summar|regular|general|util|serial|minim|maxim)" + r"is(?:e|ing|ation)",
]
KINDS = ("added", "changed", "deprecated", "removed", "fixed")
TEXTS = [path for path in text_files() if path.name not in ("LICENSE", "constraints.txt")]


def test_modules_have_a_subject() -> None:  # rule 1
    pieces = {
        shown(p): {*p.relative_to(ROOT).with_suffix("").parts} for p in python_files("palaestra", "tests", "benchmarks")
    }
    assert not [name for name, parts in pieces.items() if parts & EMPTY_NAMES]


def occurrences(pattern: str, flags: int = 0) -> list[str]:
    compiled = re.compile(pattern, flags)
    found = []
    for path in TEXTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if compiled.search(line):
                found.append(f"{shown(path)}:{number} {line.strip()[:80]}")
    return found


@pytest.mark.parametrize("pattern", UNKNOWN_TO_READERS)
def test_texts_name_what_readers_know(pattern: str) -> None:  # rule 2
    assert not occurrences(pattern)


@pytest.mark.parametrize("word", BRITISH)
def test_spelling_is_american(word: str) -> None:  # rule 3
    assert not occurrences(word, re.IGNORECASE)


def test_fragments_are_named_by_kind() -> None:  # rule 4
    fragments = [path.name for path in (ROOT / "changelog").glob("*") if path.name != "README.md"]
    assert not [name for name in fragments if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", name)]
