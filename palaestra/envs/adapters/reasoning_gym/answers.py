"""Answers as text: tags around them, spaces between digits, and which answers are safe to give to a scorer."""

from __future__ import annotations

import re

from palaestra.tools.calls import between

LONGEST = 4000  # characters; longer answers are not scored
DIGITS = re.compile(r"(?<=\d)(?=\d)")
SPACED = re.compile(r"(?<=\d) (?=\d)")
# The scorers of these datasets call `eval`, directly or through SymPy, so they only get harmless answers.
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
CHAINED = 2  # the most powers of something in parentheses: each may multiply the size of the result


def untagged(text: str) -> str | None:
    """The text between the last pair of tags; None if there is no pair."""
    found = between(text, "<answer>", "</answer>")
    return found[-1].strip() if found else None


def tagged(answer: str) -> str:
    """The answer with tags around it."""
    return f"<answer> {answer} </answer>"


def spaced(text: str) -> str:
    """The text with a space between digits, so that a small model reads numbers digit by digit."""
    return DIGITS.sub(" ", text)


def unspaced(text: str) -> str:
    """The text without single spaces between digits."""
    return SPACED.sub("", text)


def says_nothing(answer: str) -> bool:
    """Whether the text has no answer: it holds only blanks, dots or question marks."""
    return not answer.strip(" \t\r\n.?")


def harmless(dataset: str, answer: str) -> bool:
    """Whether the answer is safe to score. Some scorers run an answer as code, or would compute for hours."""
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
