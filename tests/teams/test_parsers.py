"""Parsers: (1) a choice is read whatever its case and spaces, and is nothing else; (2) anywhere: the first option that
stands there as whole words, of several that begin there the longest; (3) the last number; (4) the last tagged text;
what means nothing is None.
"""

from __future__ import annotations

import pytest

from palaestra.teams.parsers import choice, number, tagged

OPTIONS = ("yes", "no", "not sure")


@pytest.mark.parametrize(
    ("text", "meant"), [("yes", "yes"), ("  NOT   sure ", "not sure"), ("yes.", None), ("yesno", None), ("", None)]
)
def test_1_choice(text: str, meant: str | None) -> None:
    assert choice(text, options=OPTIONS) == meant


@pytest.mark.parametrize(("text", "meant"), [("I say no, then yes", "no"), ("nobody knows", None), ("a Yes!", "yes")])
def test_2_anywhere(text: str, meant: str | None) -> None:
    assert choice(text, options=OPTIONS, anywhere=True) == meant


@pytest.mark.parametrize(("text", "meant"), [("plan and execute: x", "plan and execute"), ("plan: execute x", "plan")])
@pytest.mark.parametrize("options", [("plan", "execute", "plan and execute"), ("plan and execute", "execute", "plan")])
def test_2_one_option_begins_another(text: str, meant: str, options: tuple[str, ...]) -> None:
    assert choice(text, options=options, anywhere=True) == meant


@pytest.mark.parametrize(("text", "meant"), [("3 + 4 = 7", 7.0), ("it is -2.5", -2.5), ("none", None), ("1.", 1.0)])
def test_3_number(text: str, meant: float | None) -> None:
    assert number(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"), [("<v>a</v><v> b\n</v>", "b"), ("<v>a", None), ("<w>a</w>", None), ("<v></v>", "")]
)
def test_4_tagged(text: str, meant: str | None) -> None:
    assert tagged(text, tag="v") == meant
