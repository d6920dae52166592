"""Verifiers that compare a reply with the right answer of its row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic

from palaestra.envs.kit.answers import answer_words, token_f1
from palaestra.registry import register

Normalization = Literal["none", "spaces", "case", "words"]
FRACTION = re.compile(r"-?\$?-?[\d.,]+\s*/\s*[\d.,]+\$?")
Mark = Annotated[str, pydantic.Field(min_length=1)]
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?(?<=\d)")


def right_answers(answer: Any) -> list[str]:
    """The right answers of a row, as texts: those of a list, or the only one.

    A whole number may be written with or without a point, and a truth value with or without a capital letter.

    Raises: ValueError, if there is none, or if one is neither a text nor a number.

    >>> right_answers(["red", 4, 4.0, True])
    ['red', '4', '4', '4.0', 'true', 'True']
    """
    given = answer if isinstance(answer, list | tuple) else [answer]
    if not given:
        raise ValueError("the row has no right answer")
    return [text for one in given for text in _written(one)]


def _written(answer: Any) -> list[str]:
    """How a right answer may be written."""
    if answer is None or isinstance(answer, Mapping | list | tuple):
        raise ValueError(f"the right answer {answer!r} is neither a text nor a number")
    if isinstance(answer, bool):
        return [str(answer).lower(), str(answer)]
    if isinstance(answer, float | Decimal) and math.isfinite(answer) and answer == int(answer):
        return [str(int(answer)), str(answer)]
    return [str(answer)]


def normalized(text: str, how: Normalization) -> str:
    """A text as it is compared.

    >>> [normalized(" The  Cat. ", how) for how in ("none", "spaces", "case", "words")]
    [' The  Cat. ', 'The Cat.', 'the cat.', 'cat']
    """
    if how == "none":
        return text
    if how == "words":
        return " ".join(answer_words(text))
    text = " ".join(text.split())
    return text.casefold() if how == "case" else text


@register("verifier", "exact_match")
def exact_match(
    completion: str, answer: Any, *, normalize: Normalization = "spaces", after: Mark | None = None
) -> float:
    """1 if the reply is a right answer, else 0.

    Args:
        completion: the reply.
        answer: the right answer, or a list of right answers.
        normalize: what makes no difference. "none": nothing; "spaces": spaces around and between words; "case": spaces
            and case; "words": also punctuation and the articles a, an and the.
        after: only the text after the last occurrence of this counts, such as `####` or `</think>`; without it, the
            reply is wrong. None: the whole reply.

    >>> exact_match("red,  blue ", "red, blue"), exact_match("Blue!", ["red", "blue"], normalize="words")
    (1.0, 1.0)
    """
    said = last_part(completion, after)
    wanted = {normalized(one, normalize) for one in right_answers(answer)}
    return float(said is not None and normalized(said, normalize) in wanted)


@register("verifier", "word_f1")
def word_f1(completion: str, answer: Any) -> float:
    """The F1 of words between the reply and the closest right answer, in [0, 1].

    Args:
        completion: the reply.
        answer: the right answer, or a list of right answers.

    >>> round(word_f1("the old red house", "red house"), 2)
    0.8
    """
    return token_f1(completion, right_answers(answer)) if answer_words(completion) else 0.0


@register("verifier", "number")
def number(completion: str, answer: Any, *, tolerance: float = 1e-6, which: Literal["last", "only"] = "last") -> float:
    """1 if the number in the reply is the right one, else 0.

    Args:
        completion: the reply. Commas between thousands, signs and exponents are read.
        answer: the right number, or a text in which the last number is the right one, such as `… #### 72`.
        tolerance: the largest difference, relative to the right number or to 1, whichever is larger. Higher: rounded
            answers count.
        which: "last": the last number of the reply counts; "only": a reply with several different numbers is wrong.

    >>> number("so 1,200 apples", "#### 1200"), number("1 or 2", 2), number("1 or 2", 2, which="only")
    (1.0, 1.0, 0.0)
    """
    wanted = _wanted(right_answers(answer))
    said = numbers_in(completion)
    if not said or (which == "only" and len(set(said)) > 1):
        return 0.0
    return float(any(abs(said[-1] - one) <= tolerance * max(1.0, abs(one)) for one in wanted))


def _wanted(answers: list[str]) -> list[float]:
    """The numbers of right answers. Raises: ValueError, without any, or for a fraction: `1/2` is not 2."""
    fraction = next((one for one in answers if FRACTION.fullmatch(one.strip())), None)
    if fraction is not None:
        raise ValueError(f"the right answer {fraction!r} is a fraction, which the verifier `math` can read")
    wanted = [numbers_in(one)[-1] for one in answers if numbers_in(one)]
    if not wanted:
        raise ValueError(f"the right answer {', '.join(map(repr, answers))} has no number")
    return wanted


@register("verifier", "choice")
def choice(completion: str, answer: Any, *, letters: str = "ABCD") -> float:
    """1 if the reply chooses the right letter of a multiple choice, else 0.

    The letter in `\\boxed{…}` counts first, then one after `answer` (`The answer is (B)`), then the only letter that
    stands alone. A reply with several letters, or with none, is wrong.

    Args:
        completion: the reply.
        answer: the right letter, its index from 0, or a list of those.
        letters: the letters of the choices, in their order.

    >>> choice("Answer: (B).", "B"), choice("B", 1), choice("A or B", "B")
    (1.0, 1.0, 0.0)
    """
    wanted = [_choice(one, letters.upper()) for one in (answer if isinstance(answer, list | tuple) else [answer])]
    return float(_letter(completion, re.escape(letters)) in wanted)


def _choice(answer: Any, letters: str) -> str:
    """A right letter. Raises: ValueError, if it is none of the letters."""
    if isinstance(answer, int | float) and not isinstance(answer, bool) and answer in range(len(letters)):
        return letters[int(answer)]
    wanted = str(answer).strip().strip("().").upper()
    if wanted not in list(letters):
        raise ValueError(f"the right answer {answer!r} is none of the letters {letters}")
    return wanted


def _letter(text: str, letters: str) -> str | None:
    for pattern in (
        rf"\\boxed\{{\s*(?:\\text\{{)?\(?([{letters}])\b",
        rf"(?i:answer|choice)\s*(?i:is|:)?\s*:?\s*\**\(?([{letters}])\b",
    ):
        said = re.findall(pattern, text)
        if said:
            return str(said[-1]).upper()
    alone = set(re.findall(rf"(?<![\w'])([{letters}])(?![\w'])", text))
    return alone.pop() if len(alone) == 1 else None


def last_part(text: str, after: str | None) -> str | None:
    """The text after the last occurrence of `after`; the whole text if that is None; None without an occurrence."""
    if after is None:
        return text
    _, found, rest = text.rpartition(after)
    return rest if found else None


def numbers_in(text: str) -> list[float]:
    """The numbers of a text, in their order.

    >>> numbers_in("-3.5, 1,200 and 2e3")
    [-3.5, 1200.0, 2000.0]
    """
    return [float(found.replace(",", "")) for found in _matches(text.replace("−", "-"))]


def _matches(text: str) -> Iterable[str]:
    return (found[0] for found in NUMBER.finditer(text) if re.search(r"\d", found[0]))
