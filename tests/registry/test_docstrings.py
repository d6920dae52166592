"""Docstrings are read in Google's style and in the forms that this project allows beside it:

1. The summary is the first line; prose keeps its formulas; examples are left out, what follows them is not.
2. Each argument has its text, also over several lines, with a kind in brackets, or one text for several arguments.
3. A section may begin beside its heading and go on below it; prose after the sections is prose.
4. An entry without a colon is refused.
"""

from __future__ import annotations

import inspect

import pytest

from palaestra.registry.docstrings import read_docstring

WHOLE = """Scale rewards.

    r' = r / scale

Where nothing is paid, nothing changes.

>>> scaled([2], scale=2)
[1.0]

Args:
    rewards (list[float]): per row;
        none is NaN.
    low, high: bounds: both
        are kept.

    scale: > 0. Higher: smaller
        rewards. Usual: 1.

Rows that do not count get 0.

Raises: InvalidData, for a scale
    that is 0,
or below.
Returns: float32 (rows,).
Differs from the authors' code:
    nothing is clipped.

The last word.
"""


def test_a_whole_docstring() -> None:  # rules 1 to 3
    told = read_docstring(inspect.cleandoc(WHOLE))
    assert told.summary == "Scale rewards."
    paragraphs = ["    r' = r / scale", "Where nothing is paid, nothing changes.", "Rows that do not count get 0."]
    assert [piece for piece in told.body.splitlines() if piece.strip()] == [*paragraphs, "The last word."]
    assert told.arguments == {
        "rewards": "per row; none is NaN.",
        "low": "bounds: both are kept.",
        "high": "bounds: both are kept.",
        "scale": "> 0. Higher: smaller rewards. Usual: 1.",
    }
    assert told.notes == {
        "Raises": "InvalidData, for a scale that is 0, or below.",
        "Returns": "float32 (rows,).",
        "Differs from the authors' code": "nothing is clipped.",
    }


@pytest.mark.parametrize(
    ("text", "summary", "arguments"),
    [
        ("", "", {}),
        ("Add.", "Add.", {}),
        ("Add.\n\nArgs: a: one.", "Add.", {"a": "one."}),
        ("Add.\n\nArguments:\n  a: one.\n  b: two.", "Add.", {"a": "one.", "b": "two."}),
        ("Args:\n    a: one.", "", {"a": "one."}),
        ("Add.\n\nArgs:\n    a: b: c.\n        d: e.", "Add.", {"a": "b: c. d: e."}),
    ],
)
def test_short_ones(text: str, summary: str, arguments: dict[str, str]) -> None:  # rules 1 and 2
    told = read_docstring(text)
    assert (told.summary, told.arguments) == (summary, arguments)


def test_an_entry_without_a_colon_is_refused() -> None:  # rule 4
    with pytest.raises(ValueError, match=r"section of arguments cannot be read.*whatever"):
        read_docstring("Add.\n\nArgs:\n    a: one.\n    whatever")
