"""One iteration can be read: (1) the glossary's first section has at most 35 terms, each with one sentence and one
example; (2) the classes and columns among the terms exist; (3) what an example shows as code stands in the library or
in a recipe; (4) no word is explained twice; (5) the page of one iteration names functions and files that exist, and is
short; (6) its questions stand at its end, without answers.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from palaestra.columns import FROM_EPISODES, KEYS, OF_TOKENS, is_output
from tests.docs.pages import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ITERATION = (ROOT / "docs" / "iteration.md").read_text(encoding="utf-8")
MOST = 35
CODE = re.compile(r"`([^`]+)`")
PLACE = re.compile(r"`([A-Za-z_.]+)`\s+\(`(palaestra/[\w/]+\.py)`\)")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def section(text: str, title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    return [cells(line) for line in text.splitlines() if line.startswith("| ")][1:]


TERMS = rows(section(GLOSSARY, "To read one iteration"))
OTHERS = [row for part in re.split(r"^## ", GLOSSARY, flags=re.MULTILINE)[2:] for row in rows(part)]


@cache
def sources() -> str:
    """The library without its tests, and all recipes."""
    files = [path for path in (ROOT / "palaestra").rglob("*.py") if not path.name.startswith("test_")]
    files += [*(ROOT / "palaestra").rglob("*.yaml"), *(ROOT / "recipes").rglob("*.yaml")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def classes() -> set[str]:
    return set(re.findall(r"^class (\w+)", sources(), re.MULTILINE))


def is_column(name: str) -> bool:
    return name in {*FROM_EPISODES, *KEYS, *OF_TOKENS} or is_output(name)


def defined(file: Path) -> set[str]:
    """The functions, classes and methods of a module: `prepare`, `Trainer`, `Trainer.iterate`."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            members = [n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *(f"{node.name}.{member}" for member in members)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_1_how_many() -> None:
    assert 20 <= sum(len(row[0].split(",")) for row in TERMS) <= MOST


@pytest.mark.parametrize("row", TERMS, ids=[row[0].strip("`") for row in TERMS])
def test_1_one_sentence_and_an_example(row: list[str]) -> None:
    term, meaning, example = row
    assert term and example
    assert re.fullmatch(r"[A-Z][^.?!;]*\.", meaning), meaning


@pytest.mark.parametrize("term", [code for row in TERMS for code in CODE.findall(row[0])])
def test_2_terms_exist(term: str) -> None:
    assert term in classes() or is_column(term), term


@pytest.mark.parametrize("code", [code for row in TERMS for code in CODE.findall(row[2])])
def test_3_examples_exist(code: str) -> None:
    assert is_column(code) or code in sources(), code


def test_4_no_word_twice() -> None:
    words = [word.strip("` ").lower() for row in (*TERMS, *OTHERS) for word in row[0].split(",")]
    assert len(TERMS) > 20 and len(OTHERS) > 20
    assert not {word for word in words if words.count(word) > 1}


def test_5_places_exist() -> None:
    places = PLACE.findall(ITERATION)
    assert len(places) >= 20
    missing = [(name, file) for name, file in places if name not in defined(ROOT / file)]
    assert not missing
    files = [code for code in CODE.findall(ITERATION) if code.startswith("palaestra/")]
    assert all((ROOT / file).exists() for file in files)


def test_5_the_page_is_short() -> None:
    steps = re.findall(r"^(\d+)\. \*\*", section(ITERATION, "Twelve steps"), re.MULTILINE)
    assert steps == [str(number) for number in range(1, 13)]
    assert ITERATION.count("\n") < 120


def test_6_questions() -> None:
    last = ITERATION.rpartition("\n## ")[2]
    questions = re.findall(r"^\d\. (.*)$", last, re.MULTILINE)
    assert len(questions) == 6 and all(question.endswith("?") for question in questions)
    for word in ("reward", "estimator", "loss", "rollout strategy", "`logprob_old`", "failed episode"):
        assert sum(word in question for question in questions) == 1
