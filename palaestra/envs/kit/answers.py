"""Compare a given answer with the right answers: as a whole, by common words, or as part of a longer text.

Case, punctuation, extra spaces and the articles a, an and the make no difference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from palaestra.errors import InvalidData

ARTICLES = frozenset({"a", "an", "the"})


def answer_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation and articles."""
    words = re.sub(r"[^\w\s]", " ", text.casefold()).split()
    return [word for word in words if word not in ARTICLES]


def exact_match(given: str, right: Iterable[str]) -> float:
    """1 if a right answer has the same words in the same order, else 0."""
    words = answer_words(given)
    return float(any(words == one for one in _right(right)))


def token_f1(given: str, right: Iterable[str]) -> float:
    """F1 of words, 2 · common / (given + right), for the right answer with which it is highest.

    A repeated word is common as often as both texts have it.
    """
    words = answer_words(given)
    return max(2 * _common(words, one) / (len(words) + len(one)) for one in _right(right))


def token_recall(given: str, right: Iterable[str]) -> float:
    """The share of a right answer's words that are given, for the right answer with which it is highest.

    A text that lists every word gets 1.
    """
    words = answer_words(given)
    return max(_common(words, one) / len(one) for one in _right(right))


def holds_answer(given: str, right: Iterable[str]) -> float:
    """1 if the given text contains all words of a right answer in a row, else 0."""
    said = f" {' '.join(answer_words(given))} "
    return float(any(f" {' '.join(one)} " in said for one in _right(right)))


def _right(right: Iterable[str]) -> list[list[str]]:
    found = [words for words in map(answer_words, right) if words]
    if not found:
        raise InvalidData(
            where="right answers",
            what="there is no right answer to compare with, or none that has a word.",
            remedy="Give at least one answer with a word or a number other than a, an and the.",
        )
    return found


def _common(given: list[str], right: list[str]) -> int:
    return (Counter(given) & Counter(right)).total()


__all__ = ["answer_words", "exact_match", "holds_answer", "token_f1", "token_recall"]
