"""Formulas for a terminal: (1) every formula of a system becomes one line without a backslash; (2) fractions keep their
parentheses, indexes their braces, and functions their spaces.
"""

from __future__ import annotations

import pytest

from palaestra.catalogue import systems
from palaestra.catalogue.formulas import in_a_terminal

LINES = [(each.name, line) for each in systems() for line in each.formulas]


def test_1_all_formulas() -> None:
    shown = {f"{name}: {line}": in_a_terminal(line) for name, line in LINES}
    assert len(shown) > 100
    assert not [line for line, text in shown.items() if not text or "\\" in text or "\n" in text or "%s" in text]


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{R_i - \operatorname{mean}_g R}{\sigma + \epsilon}", "(R_i - mean_g R)/(σ + ϵ)"),
        (r"\tfrac{1}{2} x_{i+1}", "1/2 x_{i+1}"),
        (r"R \mathrel{+}= \log\pi(y \mid x), \qquad u \le 0", "R += log π(y |x),     u ≤ 0"),
        (r"\min(a, b) / \max A", "min(a, b) / max A"),
    ],
)
def test_2_structure(latex: str, text: str) -> None:
    assert in_a_terminal(latex) == text
