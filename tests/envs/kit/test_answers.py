"""What must hold of comparing answers:

1. Case, punctuation, articles and extra spaces do not count. Everything else does.
2. Token F1, recall and the search for an answer inside a text equal hand computation. The best right answer counts.
3. A word that is given more often than the right answer has it helps only once.
4. Without a right answer the comparison raises an error.
"""

from __future__ import annotations

import pytest

from palaestra.envs.kit.answers import answer_words, exact_match, holds_answer, token_f1, token_recall
from palaestra.errors import InvalidData


@pytest.mark.parametrize(
    ("given", "right", "expected"),
    [
        ("The  Birch!", ["birch"], 1.0),
        ("an elm", ["birch", "elm"], 1.0),
        ("birch elm", ["birch"], 0.0),
        ("elm birch", ["birch elm"], 0.0),
        ("", ["birch"], 0.0),
        ("a", ["birch"], 0.0),
        ("theory", ["the ory"], 0.0),
    ],
)
def test_exact_match(given, right, expected):  # rule 1
    assert exact_match(given, right) == expected


def test_words_that_count():  # rule 1
    assert answer_words("The new-York, a City.") == ["new", "york", "city"]


@pytest.mark.parametrize(
    ("given", "right", "f1", "recall"),
    [
        ("york city hall", ["new york city"], 2 * 2 / 6, 2 / 3),
        ("new york city", ["new york city"], 1.0, 1.0),
        ("york", ["new york city", "york town"], 2 * 1 / 3, 1 / 2),
        ("elm", ["birch"], 0.0, 0.0),
        ("", ["birch"], 0.0, 0.0),
        ("york york york", ["new york"], 2 * 1 / 5, 1 / 2),  # rule 3
        ("new york is a city in new england", ["new york city"], 2 * 3 / (7 + 3), 1.0),
    ],
)
def test_tokens(given, right, f1, recall):  # rule 2
    assert token_f1(given, right) == pytest.approx(f1)
    assert token_recall(given, right) == pytest.approx(recall)


def test_an_answer_inside_a_text():  # rule 2
    assert holds_answer("It was in New York, I think.", ["new york"]) == 1.0
    assert holds_answer("it was in new old york", ["new york"]) == 0.0
    assert holds_answer("elmwood", ["elm"]) == 0.0
    assert holds_answer("elmwood or elm", ["birch", "the elm"]) == 1.0


@pytest.mark.parametrize("compare", [exact_match, token_f1, token_recall, holds_answer])
@pytest.mark.parametrize("right", [[], ["the"], ["", "?"]])
def test_nothing_to_compare_with(compare, right):  # rule 4
    with pytest.raises(InvalidData, match="no right answer"):
        compare("birch", right)
