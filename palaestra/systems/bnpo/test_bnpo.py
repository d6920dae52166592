"""BNPO.

1. With the shape (1, 1) it is Dr. GRPO, bit for bit; with (3/2, 3/2) it is GRPO times π/8 where results are 0 or 1.
2. The fitted shape has the least variance of the normalized gradient, at every phase of a run.
3. One group, equal rates, or rates that no Beta distribution can have give (1, 1); so does a batch of extremes.
4. Groups of one outcome get 0, whatever the density; the floor bounds the advantage of a rare success.
5. A trajectory alone in its group gets 0 and does not change the fit; neither does padding.
6. Several results are estimated one by one and averaged; `outcome` counts once, other columns are summed.
7. Empty ranges, results outside the range, and missing results are refused.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import dr_grpo, grpo
from palaestra.systems.bnpo import beta_density, bnpo
from tests.parts.tables import close, quick


def groups(*results: list[Any], **columns: object) -> StepTable:
    """One group for each list, one trajectory of one row for each result."""
    return StepTable(
        group=[g for g, group in enumerate(results) for _ in group],
        trajectory=[f"{g}/{i}" for g, group in enumerate(results) for i in range(len(group))],
        agent=["x"] * sum(map(len, results)),
        turn=[0] * sum(map(len, results)),
        reward=[float(result) for group in results for result in group],
        **columns,
    )


MIXED = ([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0])
Rates = st.lists(st.integers(0, 8), min_size=2, max_size=6)


@quick
@given(Rates)
def test_1_the_uniform_density_is_dr_grpo(successes: list[int]) -> None:
    table = groups(*([1] * n + [0] * (8 - n) for n in successes))
    assert torch.equal(bnpo(table, shape=(1.0, 1.0)), dr_grpo(table))


@quick
@given(Rates)
def test_1_three_halves_are_grpo(successes: list[int]) -> None:
    table = groups(*([1] * n + [0] * (8 - n) for n in successes))
    assert close(bnpo(table, shape=(1.5, 1.5), floor=1e-6), grpo(table, ddof=0) * math.pi / 8)


@pytest.mark.parametrize(("a", "b"), [(2.0, 5.0), (3.5, 3.5), (5.0, 2.0), (1.2, 1.1)])
def test_2_least_variance(a: float, b: float) -> None:
    rate = (torch.arange(20_000).double() + 0.5) / 20_000
    drawn = beta_density(rate, a, b)

    def variance(alpha: float, beta: float) -> float:  # of (R − p) / f over tasks with these rates; ∫ f = 1 for all
        return float((drawn * rate * (1 - rate) / beta_density(rate, alpha, beta) ** 2).mean())

    own = variance(1 + a / 3, 1 + b / 3)
    assert own <= variance(1.0, 1.0) + 1e-9 and own <= variance(1.5, 1.5) + 1e-9


def test_2_the_shape_is_fitted_to_the_batch() -> None:
    """Rates of Beta(2, 5), given by graded results, give α = 1 + 2/3 and β = 1 + 5/3."""
    draw = torch.rand(4000, 6, generator=torch.Generator().manual_seed(0))
    rates = draw.sort(1).values[:, 1].double()  # the second smallest of six uniform numbers is Beta(2, 5)
    inside = rates[(rates > 0.05) & (rates < 0.9)]
    wide = torch.cat([rates[(rates <= 0.05) | (rates >= 0.9)], inside])
    table = groups(*([rate + 0.01, rate - 0.01] if 0.01 < rate < 0.99 else [rate, rate] for rate in wide.tolist()))
    found = bnpo(table, floor=1e-6)[-2 * len(inside) :: 2].double()
    expected = 0.01 / beta_density(inside, 1 + 2 / 3, 1 + 5 / 3)
    assert float((found / expected - 1).abs().median()) < 0.03


@pytest.mark.parametrize(
    "results",
    [([1, 0, 0, 0],), ([1, 0], [0, 1], [1, 0]), ([1, 1], [0, 0], [1, 1], [0, 0]), ([1, 1, 0, 0], [1, 1], [0, 0])],
)
def test_3_nothing_to_fit(results: tuple[list[Any], ...]) -> None:
    table = groups(*results)
    assert torch.equal(bnpo(table), dr_grpo(table))


def test_4_extremes_and_the_floor() -> None:
    assert bnpo(groups([1, 1], [0, 0], [1, 0])).tolist()[:4] == [0, 0, 0, 0]
    table = groups(*([1] * n + [0] * (16 - n) for _ in range(60) for n in (15, 14)), [1] + [0] * 15)
    rare = float(bnpo(table, floor=1e-6).max())
    assert rare > 20
    assert float(bnpo(table).max()) == pytest.approx(15 / 16 / 0.1)


def test_5_lone_trajectories_and_padding() -> None:
    table = groups(*MIXED)
    alone = groups(*MIXED, [1], [0])
    assert torch.equal(bnpo(alone)[:16], bnpo(table))
    assert bnpo(alone)[16:].tolist() == [0, 0]
    padded = groups(*MIXED, [900, -900], row_weight=[1.0] * 16 + [0.0] * 2)
    assert torch.equal(bnpo(padded)[:16], bnpo(table)) and bnpo(padded)[16:].tolist() == [0, 0]


def test_6_several_results() -> None:
    formats = [1.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    table = groups(*MIXED, format=formats)
    own = bnpo(table.replace(reward=torch.tensor(formats)))
    assert close(bnpo(table, rewards=("return", "format")), (bnpo(table) + own) / 2, tolerance=1e-6)
    two = StepTable(  # two rows a trajectory: a column is summed up, the outcome is not
        group=["g"] * 4,
        trajectory=["a", "a", "b", "b"],
        agent=["x"] * 4,
        turn=[0, 1, 0, 1],
        reward=[0.0, 1.0, 0.0, 0.0],
        outcome=[1.0, 1.0, 0.0, 0.0],
        steps=[0.5, 0.5, 0.0, 0.0],
    )
    assert bnpo(two).tolist() == bnpo(two, rewards=("outcome",)).tolist() == bnpo(two, rewards=("steps",)).tolist()


def test_7_refusals() -> None:
    table = groups(*MIXED)
    with pytest.raises(RecipeError, match="1 to 1, is empty"):
        bnpo(table, minimum=1.0)
    with pytest.raises(RecipeError, match="`rewards` is empty"):
        bnpo(table, rewards=())
    with pytest.raises(InvalidData, match="a result is 2, outside 0 to 1, so that its group has no") as caught:
        bnpo(groups([0, 1], [2, 0]))
    assert "`return`, row 2" in caught.value.where
    with pytest.raises(InvalidData, match="a result is nan"):
        bnpo(groups([0, 1], outcome=[1.0, float("nan")]), rewards=("outcome",))
    with pytest.raises(MissingColumn, match="no column `taste`"):
        bnpo(table, rewards=("taste",))
    with pytest.raises(InvalidData, match="no peer set has two members"):
        bnpo(groups([1], [0]))
    for wrong in ({"floor": 0}, {"shape": (0, 1)}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            bnpo(table, **wrong)
