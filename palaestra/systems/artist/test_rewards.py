"""Rewards for tool use and for function calls: (1) hand-derived numbers; (2) values out of range are refused."""

from __future__ import annotations

import pytest
import torch

from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.artist.function_calls import function_calls
from palaestra.systems.artist.tool_use import tool_use
from tests.parts.small_tables import episode

PARTS = {
    tool_use: ("answer_reward", "format_reward", "tool_reward"),
    function_calls: ("state_reward", "calls_reward"),
}


def test_tool_use_by_hand() -> None:  # rule 1
    found = tool_use(episode(5, outcome=1.0, tool_call=4, tool_error=1, format=1.0))
    assert found["reward"].tolist() == [0, 0, 0, 0, 3.75]
    assert [float(found[name][-1]) for name in PARTS[tool_use]] == [2.0, 1.0, 0.75]
    silent = tool_use(episode(2, outcome=0.0, tool_call=0, tool_error=0, format=1.0))
    assert silent["reward"].tolist() == [0, 1]


def test_function_calls_by_hand() -> None:  # rule 1
    numbers = {"state_matched": 3, "state_total": 4, "calls_matched": 1, "calls_total": 2}
    matches = {name: torch.full((2,), float(value)) for name, value in numbers.items()}
    found = function_calls(episode(2).replace(**matches))
    assert found["reward"].tolist() == [0, 0.625]
    assert (found["state_reward"].tolist(), found["calls_reward"].tolist()) == ([0, 0.375], [0, 0.25])
    with_format = function_calls(episode(2).replace(**matches, format=torch.ones(2)), format=1.0)
    assert with_format["reward"].tolist() == [0, 1.625]


def test_bad_calls() -> None:  # rule 2
    good = {"outcome": 1.0, "tool_call": 2, "tool_error": 1, "format": 1.0}
    for change, message in (
        ({"tool_error": 3}, r"reward: tool_use, trajectory t, turn 0(.|\n)*of which 3 failed"),
        ({"tool_error": -1}, "of which -1 failed"),
        ({"outcome": float("nan")}, "it has no outcome"),
        ({"outcome": 2.0}, r"its outcome is 2, not in \[0, 1\]"),
        ({"format": 1.5}, r"turn 1(.|\n)*`format` is 1.5"),
    ):
        with pytest.raises(InvalidData, match=message):
            tool_use(episode(2, **{**good, **change}))
    with pytest.raises(MissingColumn, match="tool_error"):
        tool_use(episode(2, outcome=1.0, tool_call=1, format=1.0))
    with pytest.raises(RecipeError, match="answer"):
        tool_use(episode(2, **good), answer=-1.0)


def test_bad_matches() -> None:  # rule 2
    numbers = {"state_matched": 1.0, "state_total": 1.0, "calls_matched": 1.0, "calls_total": 1.0}
    for change, message in (
        ({"calls_total": 0.0}, r"1 of 0 in `calls` match(.|\n)*Give totals ≥ 1"),
        ({"state_matched": 2.0}, "2 of 1 in `state` match"),
        ({"state_matched": -1.0}, "-1 of 1 in `state` match"),
    ):
        filled = {name: torch.tensor([value] * 2) for name, value in {**numbers, **change}.items()}
        with pytest.raises(InvalidData, match=message):
            function_calls(episode(2).replace(**filled))
