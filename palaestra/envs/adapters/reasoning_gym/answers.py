"""Answers as text: tags around them, spaces between digits, and which ones are safe to hand to a scorer.

Knows texts. Knows nothing of datasets but the names of those whose scorers run an answer as Python code.
"""

from __future__ import annotations

import re

LONGEST = 4000  # characters of an answer that are judged
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
DIGITS = re.compile(r"(?<=\d)(?=\d)")
SPACED = re.compile(r"(?<=\d) (?=\d)")
# These scorers call `eval`, directly or through SymPy: only what cannot do harm may reach them.
EXPRESSIONS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
LIST_OF_LITERALS = re.compile(r"[\w\s,.\[\]'\"+-]*")
ARITHMETIC = re.compile(r"[\w\s+\-*/^().,=]*")
NAMES = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt", "pi"})
POWER = re.compile(r"\*\*\s*(.*)", re.DOTALL)
EXPONENT = re.compile(
    r"(?:-?\d{1,2}(?:\.\d{1,2})?|\(\s*-?\d{1,2}(?:\s*/\s*\d{1,2})?\s*\)|[a-zA-Z])(?!\s*\*\*)(?![\w.(])"
)
CHAINED = 2  # powers of something in parentheses, of which each may multiply the size


def untagged(text: str) -> str | None:
    """What stands between the last pair of tags; None if there is no pair."""
    found = TAGGED.findall(text)
    return found[-1].strip() if found else None


def tagged(answer: str) -> str:
    """With the tags around it."""
    return f"<answer> {answer} </answer>"


def spaced(text: str) -> str:
    """With a space between digits, so that a small model reads numbers digit by digit."""
    return DIGITS.sub(" ", text)


def unspaced(text: str) -> str:
    """Without single spaces between digits."""
    return SPACED.sub("", text)


def says_nothing(answer: str) -> bool:
    """Whether there is no answer in it: only blanks, dots or question marks."""
    return not answer.strip(" \t\r\n.?")


def harmless(dataset: str, answer: str) -> bool:
    """Whether the scorer of this dataset may see the answer: some would run it as code, or compute for hours."""
    if len(answer) > LONGEST:
        return False
    if dataset in LISTS:
        return bool(LIST_OF_LITERALS.fullmatch(answer))
    if dataset not in EXPRESSIONS:
        return True
    words = re.findall(r"[A-Za-z_]\w*", answer)
    powers = [POWER.match(answer, found.start()) for found in re.finditer(r"\*\*", answer)]
    return bool(
        ARITHMETIC.fullmatch(answer)
        and all(len(word) == 1 or word in NAMES for word in words)
        and all(found and EXPONENT.match(found[1]) for found in powers)
        and len(re.findall(r"\)\s*\*\*", answer)) <= CHAINED
        and not re.search(r"\d{16}|\.\s*[A-Za-z_]", answer)
    )
