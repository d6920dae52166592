"""The bonus for tool calls: (1) hand-derived numbers; (2) values out of range are refused."""

from __future__ import annotations

import pytest

from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.grpo_tcr import tool_bonus
from tests.parts.small_tables import episode


@pytest.mark.parametrize(
    ("right", "messages", "expected"),
    [(1.0, 8, 1.0), (0.0, 2, -1.0), (0.0, 6, -0.8), (0.0, 10, -0.6), (0.0, 20, -0.6)],
)
def test_tool_bonus_by_hand(right: float, messages: int, expected: float) -> None:  # rule 1
    found = tool_bonus(episode(3, outcome=right, tool_call=(messages - 2) / 2))
    assert found["reward"].tolist() == pytest.approx([0, 0, expected])
    assert float(found["tool_bonus"][-1]) == pytest.approx(0 if right else expected + 1)


def test_bad_bonus() -> None:  # rule 2
    table = episode(2, outcome=0.0, tool_call=1)
    for options in ({"cap": 1.0}, {"cap": 2.0}, {"cap": -1.5}, {"right": -0.7}):
        with pytest.raises(RecipeError, match=r"is not in \[`wrong(.|\n)*earns less than a right one"):
            tool_bonus(table, **options)
    with pytest.raises(InvalidData, match=r"its outcome is 0\.5, not 0 or 1"):
        tool_bonus(episode(2, outcome=0.5, tool_call=1))
    with pytest.raises(InvalidData, match="-1 tool calls"):
        tool_bonus(episode(2, outcome=0.0, tool_call=-1))
