"""Rewards for tool use of several systems, side by side: (1) their neutral settings are the reward `outcome`, or the
reward as it was, bit for bit; (2) the parts add up, are paid at the end, and do not depend on the order of rows or on
padding. Hand-derived numbers and refusals stand in the systems' folders.
"""

from __future__ import annotations

import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.parts.estimators import grpo
from palaestra.parts.rewards import outcome
from palaestra.systems.artist.function_calls import function_calls
from palaestra.systems.artist.tool_use import tool_use
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


@quick
@given(table=tables())
def test_neutral(table: StepTable) -> None:  # rule 1
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
def test_parts_add_up(table: StepTable) -> None:  # rule 2
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
def test_padding_does_not_count(table: StepTable) -> None:  # rule 2
    table = told(table)
    weight = torch.cat([torch.ones(len(table)), torch.zeros(len(table))])
    twice = table.take(torch.arange(len(table)).repeat(2)).replace(row_weight=weight)
    twice = twice.replace(tool_call=torch.where(weight > 0, twice["tool_call"], -7.0))
    for part in (tool_use, function_calls, tool_bonus, tool_penalties, milestones):
        found, base = part(twice), part(table)
        assert all(torch.equal(found[name][: len(table)], base[name]) for name in base), part
