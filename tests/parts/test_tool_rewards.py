"""Rewards for tool use: (1) hand-derived numbers; (2) their neutral settings are the reward `outcome`, or the reward as
it was, bit for bit; (3) the parts add up, are paid at the end, and do not depend on the order of rows or on padding;
(4) what is out of range is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.parts.rewards import outcome
from palaestra.systems.artist.function_calls import function_calls
from palaestra.systems.artist.tool_use import tool_use
from palaestra.systems.duration_aware.markers import marker, reached
from palaestra.systems.duration_aware.milestones import milestones
from palaestra.systems.grpo_tcr import tool_bonus
from palaestra.systems.verl_tool import tool_penalties
from tests.parts.tables import quick, shuffled, tables

PARTS = {
    tool_use: ("answer_reward", "format_reward", "tool_reward"),
    function_calls: ("state_reward", "calls_reward"),
}


def told(table: StepTable) -> StepTable:
    """The table with what environments tell of tools, from its other columns."""
    calls = table["turn"] % 3
    return table.replace(
        tool_call=calls.float(),
        tool_error=(calls > 1).float(),
        format=(table["turn"] % 2).float(),
        state_matched=(table["turn"] % 3).float(),
        state_total=torch.full((len(table),), 2.0),
        calls_matched=(table["turn"] % 2).float(),
        calls_total=torch.ones(len(table)),
        valid=(table["turn"] % 2).float(),
        milestones=(table["turn"] % 6).float(),
        invalid=(table["turn"] == 1).float(),
    )


def episode(steps: int, **columns: Any) -> StepTable:
    """One trajectory. A number stands on the first row; `format`, `state…`, `calls…` and `truncated` on the last."""
    table = {"group": ["g"] * steps, "trajectory": ["t"] * steps, "agent": ["x"] * steps, "turn": list(range(steps))}
    filled: dict[str, Any] = {"reward": [0.0] * steps}
    for name, value in columns.items():
        late = name.startswith(("format", "state_", "calls_", "truncated"))
        rest = [0.0] * (steps - 1)
        filled[name] = [value] * steps if name == "outcome" else [*rest, value] if late else [value, *rest]
    return StepTable(**table, **filled)


# ---- numbers ----------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize(
    ("right", "messages", "expected"),
    [(1.0, 8, 1.0), (0.0, 2, -1.0), (0.0, 6, -0.8), (0.0, 10, -0.6), (0.0, 20, -0.6)],
)
def test_tool_bonus_by_hand(right: float, messages: int, expected: float) -> None:  # rule 1
    found = tool_bonus(episode(3, outcome=right, tool_call=(messages - 2) / 2))
    assert found["reward"].tolist() == pytest.approx([0, 0, expected])
    assert float(found["tool_bonus"][-1]) == pytest.approx(0 if right else expected + 1)


def test_tool_penalties_by_hand() -> None:  # rule 1
    clean = tool_penalties(episode(2, tool_call=1, format=1.0), format=0.5)
    assert clean["reward"].tolist() == clean["penalty"].tolist() == [0, 0]
    worst = episode(3, tool_call=0, invalid=1.0, truncated=True, format=0.0, reward=1.0)
    found = tool_penalties(worst, format=0.5)
    assert found["reward"].tolist() == [1, 0, -1.25] and found["penalty"].tolist() == [0, 0, 1.25]
    assert tool_penalties(worst)["reward"].tolist() == [1, 0, -0.75]


def test_milestones_by_hand() -> None:  # rule 1
    table = episode(3).replace(
        reward=torch.tensor([0.0, 0.0, 0.7]), valid=torch.tensor([0, 0, 1]), milestones=torch.tensor([0, 3, 5])
    )
    found = milestones(table)
    assert found["reward"].tolist() == pytest.approx([-10, -9.7, 0.7])
    assert found["milestone_reward"].tolist() == pytest.approx([0, 0.3, 0], abs=1e-5)


def test_markers_need_their_nonce() -> None:
    names, output = ("loaded", "trained", "wrote"), f"x\n{marker('trained', 'c4')}\n{marker('wrote', 'guess')}\n"
    assert reached(output, "c4", names) == ["trained"]
    assert reached(f"print {marker('wrote', 'c4')}", "c4", names) == []
    assert reached(marker("other", "c4"), "c4", names) == []
    assert reached(marker("wrote", "c.4"), "c.4", names) == ["wrote"] != reached(marker("wrote", "cx4"), "c.4", names)


# ---- what is neutral --------------------------------------------------------------------------------------
@quick
@given(table=tables())
def test_neutral(table: StepTable) -> None:  # rule 2
    table = told(table)
    base = outcome(table)
    for found in (
        tool_use(table, answer=1.0, format=0.0, tool=0.0)["reward"],
        tool_bonus(table, bonus=0.0, wrong=0.0, cap=0.0)["reward"],
    ):
        assert torch.equal(found, base)
        assert torch.equal(grpo(table.replace(reward=found)), grpo(table.replace(reward=base)))
    plain = tool_bonus(table, bonus=0.0)
    assert torch.equal(plain["reward"], torch.where(base > 0, 1.0, torch.where(_ends(table), -1.0, 0.0)))
    free = tool_penalties(table, invalid=0.0, unfinished=0.0, no_call=0.0)
    assert torch.equal(free["reward"], table["reward"])
    assert torch.equal(milestones(table.replace(valid=torch.ones(len(table))))["reward"], table["reward"])


def _ends(table: StepTable) -> torch.Tensor:
    order, last = table.timeline("trajectory")
    return torch.zeros(len(table), dtype=torch.bool).index_fill_(0, order[last], True)


@quick
@given(table=tables())
def test_parts_add_up(table: StepTable) -> None:  # rule 3
    table = told(table)
    order = shuffled(table, 5)
    for part, names in PARTS.items():
        found, moved = part(table), part(table.take(order))
        assert torch.equal(found["reward"], sum(found[name] for name in names))
        assert bool((found["reward"][~_ends(table)] == 0).all())
        assert all(torch.equal(found[name][order], moved[name]) for name in found)
    for other in (tool_bonus, tool_penalties, milestones):
        found, moved = other(table), other(table.take(order))
        assert all(torch.equal(found[name][order], moved[name]) for name in found)


@quick
@given(table=tables())
def test_padding_does_not_count(table: StepTable) -> None:  # rule 3
    table = told(table)
    weight = torch.cat([torch.ones(len(table)), torch.zeros(len(table))])
    twice = table.take(torch.arange(len(table)).repeat(2)).replace(weight=weight)
    twice = twice.replace(tool_call=torch.where(weight > 0, twice["tool_call"], -7.0))
    for part in (tool_use, function_calls, tool_bonus, tool_penalties, milestones):
        found, base = part(twice), part(table)
        assert all(torch.equal(found[name][: len(table)], base[name]) for name in base), part


# ---- what is refused --------------------------------------------------------------------------------------
def test_bad_calls() -> None:  # rule 4
    good = {"outcome": 1.0, "tool_call": 2, "tool_error": 1, "format": 1.0}
    for change, message in (
        ({"tool_error": 3}, r"reward: tool_use, trajectory t, turn 0(.|\n)*2 calls with 3 errors"),
        ({"tool_error": -1}, "2 calls with -1 errors"),
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


def test_bad_bonus() -> None:  # rule 4
    table = episode(2, outcome=0.0, tool_call=1)
    for options in ({"cap": 1.0}, {"cap": 2.0}, {"cap": -1.5}, {"right": -0.7}):
        with pytest.raises(RecipeError, match=r"is not between(.|\n)*never earn what a right one does"):
            tool_bonus(table, **options)
    with pytest.raises(InvalidData, match=r"its outcome is 0\.5, not 0 or 1"):
        tool_bonus(episode(2, outcome=0.5, tool_call=1))
    with pytest.raises(InvalidData, match="-1 tool calls"):
        tool_bonus(episode(2, outcome=0.0, tool_call=-1))


def test_bad_matches() -> None:  # rule 4
    numbers = {"state_matched": 1.0, "state_total": 1.0, "calls_matched": 1.0, "calls_total": 1.0}
    for change, message in (
        ({"calls_total": 0.0}, r"1 of 0 in `calls` match(.|\n)*Totals must be at least 1"),
        ({"state_matched": 2.0}, "2 of 1 in `state` match"),
        ({"state_matched": -1.0}, "-1 of 1 in `state` match"),
    ):
        filled = {name: torch.tensor([value] * 2) for name, value in {**numbers, **change}.items()}
        with pytest.raises(InvalidData, match=message):
            function_calls(episode(2).replace(**filled))


def test_bad_milestones() -> None:  # rule 4
    table = episode(1, valid=0.0, milestones=1)
    with pytest.raises(RecipeError, match=r"5 milestones earn 0.5, and a valid result may earn only 0"):
        milestones(table, base=0.0)
    with pytest.raises(RecipeError, match="partial credit stays below any valid score"):
        milestones(table, base=-0.5)
    with pytest.raises(InvalidData, match=r"6 milestones of 5(.|\n)*Set `most`"):
        milestones(episode(1, valid=0.0, milestones=6))
    with pytest.raises(InvalidData, match=r"`valid` is 0\.5"):
        milestones(episode(1, valid=0.5, milestones=1))
