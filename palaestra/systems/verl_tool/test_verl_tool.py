"""The reward `tool_penalties`: (1) it has hand-derived numbers."""

from __future__ import annotations

from palaestra.systems.verl_tool import tool_penalties
from tests.parts.small_tables import episode


def test_tool_penalties_by_hand() -> None:  # rule 1
    clean = tool_penalties(episode(2, tool_call=1, format=1.0), format=0.5)
    assert clean["reward"].tolist() == clean["penalty"].tolist() == [0, 0]
    worst = episode(3, tool_call=0, invalid=1.0, truncated=True, format=0.0, reward=1.0)
    found = tool_penalties(worst, format=0.5)
    assert found["reward"].tolist() == [1, 0, -1.25] and found["penalty"].tolist() == [0, 0, 1.25]
    assert tool_penalties(worst)["reward"].tolist() == [1, 0, -0.75]
