"""Names and words: (1) no module is called after having no subject; (2) no text names a method by a number of
some list instead of its name and arXiv number, a place of one machine, or a paper of the makers; (3) American
spelling; (4) changelog fragments are called `<subject>.<kind>.md`. (5) Each rule can fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.house.source_text import ROOT, python_files, text_files

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


def without_subject(path: Path) -> bool:
    return bool({*path.with_suffix("").parts} & EMPTY_NAMES)


def test_modules_have_a_subject() -> None:  # rule 1
    files = [path.relative_to(ROOT) for path in python_files("palaestra", "tests", "benchmarks")]
    assert not [path for path in files if without_subject(path)]


def occurrences(pattern: str, flags: int = 0, texts: Iterable[Path] = TEXTS) -> list[str]:
    compiled = re.compile(pattern, flags)
    found = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if compiled.search(line):
                found.append(
                    f"{path.relative_to(ROOT) if ROOT in path.parents else path.name}:{number} {line.strip()[:80]}"
                )
    return found


@pytest.mark.parametrize("pattern", UNKNOWN_TO_READERS)
def test_texts_name_what_readers_know(pattern: str) -> None:  # rule 2
    assert not occurrences(pattern)


@pytest.mark.parametrize("word", BRITISH)
def test_spelling_is_american(word: str) -> None:  # rule 3
    assert not occurrences(word, re.IGNORECASE)


def is_fragment(name: str) -> bool:
    return re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", name) is not None


def test_fragments_are_named_by_kind() -> None:  # rule 4
    fragments = [path.name for path in (ROOT / "changelog").glob("*") if path.name != "README.md"]
    assert not [name for name in fragments if not is_fragment(name)]


def test_the_rules_can_fail(tmp_path: Path) -> None:  # rule 5
    assert without_subject(Path("palaestra/data/utils.py")) and not without_subject(Path("palaestra/data/table.py"))
    file = tmp_path / "a.md"
    for pattern, flags, text in (
        *(
            (pattern, 0, text)
            for pattern, text in zip(UNKNOWN_TO_READERS[:3], ("S" + "012", "B" + "07", "/wor" + "k/x"), strict=True)
        ),
        (BRITISH[-1], re.IGNORECASE, "Normal" + "ised"),
        (BRITISH[0], re.IGNORECASE, "Behavio" + "urs"),
    ):
        file.write_text(f"one\n{text} two\n")
        assert occurrences(pattern, flags, [file]) == [f"a.md:2 {text} two"]
    assert [is_fragment(name) for name in ("kit.added.md", "kit.new.md", "Kit.fixed.md")] == [True, False, False]
