"""The weight of difficulty, as in DGRPO.

1. With neutral options every weight is 1, and the update is that of GRPO.
2. Means run over iterations and are kept in checkpoints; they are logged with the weights.
3. Weights are bounded; a family that never succeeds gets the upper bound, and nothing divides by 0.
4. A hard group of a hard family weighs most; weights do not depend on the order of rows, and padding does not count.
5. The shares of two families in the gradient become closer.
6. Results outside [0, 1], and trajectories without a family, of an unknown one or of several are refused.
7. A trajectory that a limit cut off without a family has that of its group; a group without one weighs 1.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import Batch, StepTable
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.dgrpo import Difficulty
from palaestra.training.stages import combine
from tests.messages import told
from tests.parts.tables import quick, shuffled, tables


def at(step: int = 0) -> Iteration:
    return Iteration({}, step, seed=0, temperature=1.0, token_budget=64)


def batch(**families: list[list[float]]) -> StepTable:
    """Groups of each family, one row per trajectory."""
    rows = [
        (name, f"{name}{g}", f"{name}{g}/{i}", result)
        for name, groups in families.items()
        for g, group in enumerate(groups)
        for i, result in enumerate(group)
    ]
    return StepTable(
        group=[group for _, group, _, _ in rows],
        trajectory=[trajectory for _, _, trajectory, _ in rows],
        agent=["x"] * len(rows),
        turn=[0] * len(rows),
        reward=[result for *_, result in rows],
        stratum=[name for name, *_ in rows],
    )


EASY, HARD = [1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@quick
@given(table=tables())
def test_1_neutral(table: StepTable) -> None:
    table = table.replace(reward=table["reward"] * 0 + table["process"] / 8)
    weight = Difficulty(low=1.0, high=1.0, hard=0.0)(table, at())
    assert torch.equal(weight, torch.ones(len(table)))
    credit = table.per_token(grpo(table))
    assert torch.equal(credit * combine([weight], table), credit)


def test_2_running_means() -> None:
    part = Difficulty(hard=0.0, momentum=0.9)
    part(batch(easy=[EASY], hard=[HARD]), at(0))
    assert part.means == pytest.approx({"easy": 0.8, "hard": 0.3})
    part(batch(easy=[EASY], hard=[[1.0] * 5]), at(1))
    assert part.means == pytest.approx({"easy": 0.8, "hard": 0.37})
    logged = part.update(Batch.of((), batch(easy=[EASY])), at(1))
    assert logged["difficulty/hard/mean"] == pytest.approx(0.37)
    assert logged["difficulty/hard/weight"] == pytest.approx(0.585 / 0.37)
    resumed = Difficulty(hard=0.0)
    resumed.load_state_dict(part.state_dict())
    table = batch(hard=[HARD])
    assert torch.equal(part(table, at(2)), resumed(table, at(2)))
    assert part.means["easy"] == pytest.approx(0.8)  # families that are not in the batch keep their means


def test_3_bounds() -> None:
    weight = Difficulty(hard=0.0)(batch(easy=[[1.0, 1.0]], never=[[0.0, 0.0]], rare=[[1.0] + [0.0] * 9]), at())
    assert weight.tolist() == pytest.approx([0.5] * 2 + [2.0] * 12)
    assert Difficulty(hard=0.0)(batch(never=[[0.0, 0.0]]), at()).tolist() == [1, 1]


@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_4_order_and_padding(table: StepTable, seed: int) -> None:
    order = shuffled(table, seed)
    found, moved = (Difficulty(column="outcome")(t, at()) for t in (table, table.take(order)))
    assert torch.allclose(found[order], moved)
    doubled = table.take(torch.arange(len(table)).repeat(2))
    ghost = torch.arange(len(doubled)) >= len(table)
    wild = torch.where(ghost, torch.nan, doubled["outcome"])
    padded = Difficulty(column="outcome")(doubled.replace(row_weight=(~ghost).float(), outcome=wild), at())
    assert torch.equal(padded, torch.cat([found, torch.ones(len(table))]))


def test_4_the_hardest_weighs_most() -> None:
    weight = Difficulty()(batch(easy=[EASY], hard=[[1.0, 1.0], [0.0, 0.0]]), at())
    assert float(weight[-1]) == float(weight.max()) and float(weight[0]) == float(weight.min())


def test_5_shares_of_the_gradient() -> None:
    table = batch(easy=[EASY] * 4, hard=[HARD] * 2)

    def shares(weight: torch.Tensor) -> float:
        size = (grpo(table) * weight).abs()
        easy = table["stratum"] == 0
        return float(size[easy].mean() / size[~easy].mean())

    assert shares(Difficulty()(table, at())) < shares(torch.ones(len(table)))


def test_6_refusals() -> None:
    table = batch(easy=[EASY], hard=[HARD])
    with told(InvalidData, "1.5, outside [0") as caught:
        Difficulty()(batch(grounding=[[1.5, 0.5]]), at())
    assert "`return`, row 0" in caught.value.where
    with pytest.raises(InvalidData, match=r"a result is -0\.2"):
        Difficulty(column="overlap")(table.replace(overlap=[-0.2] * 15), at())
    with told(InvalidData, "of easy, medium") as caught:
        Difficulty(known=("easy", "medium"))(table, at())
    assert "trajectory hard0/0" in caught.value.where
    Difficulty(known=("easy", "hard"))(table, at())
    with pytest.raises(InvalidData, match="it has no family"):
        Difficulty()(table.replace(stratum=["easy"] * 14 + [None]), at())
    two = table.replace(trajectory=["t"] * 5 + [f"u{i}" for i in range(10)], turn=range(15), reward=[0.0] * 15)
    with pytest.raises(InvalidData, match="its rows have different families"):
        Difficulty()(two.replace(stratum=["easy"] * 4 + ["hard"] * 11), at())
    with pytest.raises(MissingColumn, match="no column `stratum`"):
        Difficulty()(table.replace(stratum=None), at())
    with told(RecipeError, "`low: 3`"):
        Difficulty(low=3.0)
    for wrong in ({"momentum": 1.2}, {"hard": -1}, {"low": 0}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Difficulty(**wrong)


def test_7_cut_off_without_a_family() -> None:
    table = batch(easy=[EASY], hard=[HARD])
    cut = [place in (4, 14) for place in range(len(table))]
    labels = [label if not cut[place] else None for place, label in enumerate(["easy"] * 5 + ["hard"] * 10)]
    some = Difficulty(known=("easy", "hard"))
    assert torch.equal(some(table.replace(stratum=labels, truncated=cut), at()), Difficulty()(table, at()))
    whole = Difficulty(hard=0.0)
    gone = table.replace(stratum=["easy"] * 5 + [None] * 10, truncated=[False] * 5 + [True] * 10)
    assert whole(gone, at()).tolist() == [1.0] * 15
    assert whole.means == pytest.approx({"easy": 0.8})
