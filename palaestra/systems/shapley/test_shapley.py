"""Shapley's shares of a return:

1. An episode's shares sum to its return minus the baseline.
2. Equal roles have equal shares.
3. Where all roles took part in all episodes, all have the same share.
4. A role that did not take part has 0; stand-ins are in no coalition, and random absence gives a pipeline's shares.
5. Missing coalitions, episodes in which no role took part, and too many roles are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.systems.shapley import shapley_credit
from tests.parts.small_tables import team
from tests.parts.tables import close, quick, tables

OWN = ("trajectory", "agent")


@quick
@given(tables(agents=("M", "S", "T")), st.sampled_from([0.0, -1.5]))
def test_shares_sum_to_the_return(table: StepTable, baseline: float) -> None:  # rule 1
    paid = table.replace(reward=shapley_credit(table, baseline=baseline))
    assert close(total_return(paid), total_return(table).double() - baseline)


@quick
@given(tables())
def test_everybody_in_everything(table: StepTable) -> None:  # rules 2, 3
    """Every episode is played once more by the other role, so that both took part."""
    other = table.replace(agent=["S" if table.labels("agent")[a] == "M" else "M" for a in table["agent"].tolist()])
    names = [table.labels("trajectory")[t] for t in table["trajectory"].tolist()]
    groups = [table.labels("group")[g] for g in table["group"].tolist()]
    agents = [each.labels("agent")[a] for each in (table, other) for a in each["agent"].tolist()]
    both = StepTable(
        group=groups * 2,
        trajectory=names * 2,
        agent=agents,
        turn=range(2 * len(table)),
        reward=table["reward"].repeat(2),
    )
    paid = total_return(both.replace(reward=shapley_credit(both)), by=OWN)
    assert close(paid, total_return(both).double() / 2)


def test_absence_at_random_finds_the_shares() -> None:  # rule 4
    """A pipeline of two: success is 1 with both, 0.5 without a, 0.8 without b, and 0.4 without both."""
    worth = {frozenset("ab"): 1.0, frozenset("a"): 0.8, frozenset("b"): 0.5}
    columns: dict[str, list[Any]] = {name: [] for name in ("trajectory", "agent", "turn", "reward", "row_weight")}
    for place, present in enumerate(worth):
        for turn, name in enumerate("ab"):  # a stand-in acts in place of an absent role
            row = (f"t{place}", name, turn, worth[present] if name == max(present) else 0.0, float(name in present))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    table = StepTable(group=["g"] * 6, **columns)
    found = shapley_credit(table, baseline=0.4)
    assert close(found, [0.45, 0.15, 0.4, 0, 0, 0.1])
    marked = table.replace(row_weight=None, format=table["row_weight"])
    assert close(shapley_credit(marked, baseline=0.4, present="format"), found)


def test_what_shapley_refuses() -> None:  # rule 5
    with pytest.raises(InvalidData, match=r"no episode of the group was played by \{plan\} alone"):
        shapley_credit(team(), missing="error")
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*none of its roles took part"):
        shapley_credit(team(), present="outcome")
    crowd: dict[str, Any] = {"group": ["g"] * 11, "trajectory": ["a"] * 11, "turn": range(11), "reward": [1.0] * 11}
    with pytest.raises(InvalidData, match="11 members"):
        shapley_credit(StepTable(agent=list("abcdefghijk"), **crowd))
    many: dict[str, Any] = {"group": ["g"] * 63, "turn": [0] * 63, "reward": [1.0] * 63}
    with pytest.raises(InvalidData, match="63 roles"):
        shapley_credit(StepTable(agent=range(63), trajectory=range(63), **many))
