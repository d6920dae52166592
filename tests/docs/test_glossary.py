"""One iteration can be read: (1) the glossary's first section has at most 35 terms, each with one sentence and one
example; (2) the classes and columns among the terms exist; (3) what an example shows as code stands in the library or
in a recipe; (4) no word is explained twice.
"""

from __future__ import annotations

import re
from functools import cache

from palaestra.registry.column_names import FROM_EPISODES, KEYS, OF_TOKENS, is_output
from tests.docs.pages import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
MOST = 35
CODE = re.compile(r"`([^`]+)`")


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


def test_1_how_many() -> None:
    assert 20 <= sum(len(row[0].split(",")) for row in TERMS) <= MOST


def test_1_one_sentence_and_an_example() -> None:
    assert not [row for row in TERMS if len(row) != 3 or not all(row)]
    assert not [meaning for _, meaning, _ in TERMS if not re.fullmatch(r"[A-Z][^.?!;]*\.", meaning)]


def test_2_terms_exist() -> None:
    terms = [code for row in TERMS for code in CODE.findall(row[0])]
    assert terms and not [term for term in terms if term not in classes() and not is_column(term)]


def test_3_examples_exist() -> None:
    examples = [code for row in TERMS for code in CODE.findall(row[2])]
    assert examples and not [code for code in examples if not is_column(code) and code not in sources()]


def test_4_no_word_twice() -> None:
    words = [word.strip("` ").lower() for row in (*TERMS, *OTHERS) for word in row[0].split(",")]
    assert len(TERMS) > 20 and len(OTHERS) > 20
    assert not {word for word in words if words.count(word) > 1}
