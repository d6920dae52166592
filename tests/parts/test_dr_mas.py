"""Dr. MAS beyond its numbers in tests/golden/team.yaml: (1) without a price, or without unreadable acts, the column of
unreadable acts changes nothing; (2) counted by calls, a price moves the call that pays it and its peers' baseline, and
nobody of another agent; (3) counted by trajectories it is spread over the agent's calls there; (4) padding changes
nothing, also padding that could not be read; (5) in one group the mean square advantage of an agent under one baseline
is variance ratio + shift², what the pipeline reports, and under its own baseline 1; (6) by trajectories under one
baseline, each agent's own return counts once.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import segment_mean
from palaestra.data import StepTable
from palaestra.parts.estimators import dr_mas
from palaestra.training.monitor.metrics import signal_metrics
from palaestra.training.stages import assign_credit
from tests.parts.tables import close, quick, tables

units = pytest.mark.parametrize("unit", ["row", "trajectory", "token"])


def unreadable(table: StepTable, seed: int) -> StepTable:
    dice = torch.Generator().manual_seed(seed)
    return table.replace(invalid=torch.randint(0, 2, (len(table),), generator=dice).float())


@units
@quick
@given(table=tables(), seed=st.integers(0, 99))
def test_1_no_price(unit: str, table: StepTable, seed: int) -> None:
    plain = dr_mas(table, unit=unit)
    assert torch.equal(dr_mas(unreadable(table, seed), unit=unit), plain)
    assert torch.equal(dr_mas(table, unit=unit, penalty=0.5), plain)
    assert torch.equal(dr_mas(table.replace(invalid=torch.zeros(len(table))), unit=unit, penalty=0.5), plain)


@quick
@given(table=tables(), seed=st.integers(0, 99))
def test_2_who_pays(table: StepTable, seed: int) -> None:
    marked = unreadable(table, seed)
    own = table.key("group", "agent")
    moved = dr_mas(marked, scale="none", penalty=0.5, zero_variance="keep") - dr_mas(
        table, scale="none", zero_variance="keep"
    )
    price = -0.5 * (marked["invalid"].double() - segment_mean(marked["invalid"], by=own)[own.codes])
    assert close(moved, price)
    others = table["agent"] != 0
    alone = table.replace(invalid=torch.where(others, 0.0, marked["invalid"]))
    assert torch.equal(dr_mas(alone, penalty=0.5)[others], dr_mas(table)[others])


@quick
@given(table=tables(), seed=st.integers(0, 99))
def test_3_spread_over_a_trajectory(table: StepTable, seed: int) -> None:
    marked = unreadable(table, seed)
    found = dr_mas(marked, unit="trajectory", penalty=0.5)
    place = table.key("trajectory", "agent")
    assert torch.equal(found, segment_mean(found, by=place).float()[place.codes])
    shared = table.replace(invalid=segment_mean(marked["invalid"], by=place)[place.codes].float())
    assert close(found, dr_mas(shared, unit="trajectory", penalty=0.5))


@units
@quick
@given(table=tables(), seed=st.integers(0, 99))
def test_4_padding(unit: str, table: StepTable, seed: int) -> None:
    marked = unreadable(table, seed)
    padded = marked.take(torch.arange(len(table)).repeat_interleave(2))
    first = torch.arange(len(padded)) % 2 == 0
    padded = padded.replace(
        row_weight=first.float(), invalid=torch.where(first, padded["invalid"], 1.0), reward=padded["reward"]
    )
    found = dr_mas(padded, unit=unit, penalty=0.5)
    assert close(found[first], dr_mas(marked, unit=unit, penalty=0.5))
    assert not bool(found[~first].any())


def test_5_mean_squares() -> None:
    # Three trajectories with returns 1, 0, 0; the searcher acts 0, 2 and 3 times, the answerer once in the first two.
    table = StepTable(
        group=["g"] * 10,
        trajectory=["1", "1", "2", "2", "2", "2", "3", "3", "3", "3"],
        agent=["V", "A", "V", "S", "S", "A", "V", "S", "S", "S"],
        turn=[0, 1, 0, 1, 2, 3, 0, 1, 2, 3],
        reward=[0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    )
    together = dr_mas(table, by=("group",), ddof=0).double()
    apart = dr_mas(table, ddof=0).double()
    signal = signal_metrics(assign_credit([lambda given: together.float()], table))
    for code, name in enumerate(table.labels("agent")):
        own = table["agent"] == code
        ratio, shift = (signal[f"agent/{name}/return/{what}"] for what in ("variance_ratio", "shift"))
        expected = ratio + shift**2
        assert float(together[own].square().mean()) == pytest.approx(expected, abs=1e-4)
        varied = ratio > 0
        assert float(apart[own].square().mean()) == pytest.approx(float(varied), abs=1e-4)
    assert (signal["agent/A/return/shift"], signal["agent/S/return/shift"]) == (
        pytest.approx(0.75, abs=1e-6),
        pytest.approx(-0.5, abs=1e-6),
    )


def test_6_own_returns_by_trajectories() -> None:
    table = StepTable(group=["g"] * 5, trajectory=["a", "a", "a", "b", "b"], agent=["x", "y", "y", "x", "y"],
                      turn=[0, 1, 2, 0, 1], reward=[1.0, 0.0, 0.0, 0.0, 0.0])  # fmt: skip
    found = dr_mas(table, by=("group",), unit="trajectory", returns=("trajectory", "agent"), scale="none")
    assert found.tolist() == [0.75, -0.25, -0.25, -0.25, -0.25]  # the mean over four returns, of which one is 1
