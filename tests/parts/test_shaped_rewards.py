"""Rewards that join, spoil, scale and anneal.

ReNorm: (1) every step's sign is the outcome's, or 0; (2) scores of ½ give outcome − ½; (3) with shift 0 it is the plain
sum, and the difference is a price per step; (4) refusals name the row. Noisy judge: (5) it keeps the share that it
says, the same each time, and silent rows stay silent. Running scale: (6) the moments of all batches are merged, as if
they had come at once; (7) equal returns are left alone, and a single one is refused; (8) steps are scaled together, the
mean leaves the last row; (9) a resumed run goes on with the same moments. Dense, then sparse: (10) progress pays once
for each new height, in any order of rows; (11) from the given iteration on only success pays; (12) without an outcome
or progress nothing can be paid. (13) Padding gets nothing from any of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.ppo_max import RunningScale
from palaestra.systems.ppr.noisy_judge import NoisyJudge
from palaestra.systems.ppr.renorm import renorm
from palaestra.systems.turn_gae.dense_then_sparse import DenseThenSparse
from palaestra.training.experience import Seen
from tests.parts.tables import close, quick, shuffled, tables

NAN = float("nan")


def look(step: int = 0, seed: int = 0) -> Seen:
    return Seen({}, step, seed=seed, temperature=1.0, token_budget=64)


def judged(scores: list[float], outcome: float, **columns: Any) -> StepTable:
    """One trajectory: these scores, and a final step without."""
    size = len(scores) + 1
    base: dict[str, Any] = {
        "group": ["g"] * size,
        "trajectory": ["t"] * size,
        "agent": ["x"] * size,
        "turn": range(size),
        "reward": [0.0] * size,
        "process": [*scores, NAN],
        "outcome": [outcome] * size,
    }
    return StepTable(**{**base, **columns})


def answers(*scores: float, **columns: Any) -> StepTable:
    """One answer of one row for each score."""
    names = [str(i) for i in range(len(scores))]
    return StepTable(
        group=["g"] * len(names), trajectory=names, agent=["x"] * len(names), turn=[0] * len(names), reward=scores,
        **columns,
    )  # fmt: skip


# ---- ReNorm -----------------------------------------------------------------------------------------------
Scores = st.lists(st.floats(0, 1, width=16), min_size=1, max_size=6)


@quick
@given(Scores, st.sampled_from([0.0, 1.0]), st.sampled_from([0.25, 1.0]))
def test_signs(scores: list[float], outcome: float, weight: float) -> None:  # rule 1
    reward = renorm(judged(scores, outcome), process_weight=weight)
    assert bool((reward * (outcome - 0.5) >= 0).all())


@quick
@given(st.integers(1, 6), st.floats(0, 1, width=16))
def test_undecided_judge(size: int, outcome: float) -> None:  # rule 2
    assert close(renorm(judged([0.5] * size, outcome)), [outcome - 0.5] * (size + 1))


@quick
@given(Scores, st.sampled_from([0.0, 0.5, 1.0]))
def test_plain_sum(scores: list[float], outcome: float) -> None:  # rule 3
    table = judged(scores, outcome)
    assert close(renorm(table, shift=0.0), [*(s + outcome for s in scores), outcome])
    assert close(renorm(table, shift=0.0) - renorm(table), [1.0] * len(scores) + [0.5])


def test_what_renorm_refuses() -> None:  # rule 4
    with pytest.raises(InvalidData, match=r"column `process`(.|\n)*not in \[0, 1\]; the first is 3"):
        renorm(judged([3.0, 0.5], 1.0))
    assert renorm(judged([3.0, 0.5], 1.0), maximum=5.0).tolist() == pytest.approx([0.6, 0.1, 0.5])
    with pytest.raises(InvalidData, match=r"column `outcome`(.|\n)*the first is -1"):
        renorm(judged([0.5], -1.0))
    with pytest.raises(InvalidData, match=r"turn 1(.|\n)*it is not the final step and has no score"):
        renorm(judged([0.5, NAN], 1.0))
    with pytest.raises(InvalidData, match=r"turn 1(.|\n)*it is the final step and has a score"):
        renorm(judged([0.5], 1.0, process=[0.5, 0.5]))
    with pytest.raises(MissingColumn, match="process"):
        renorm(judged([0.5], 1.0, process=None))
    for options in ({"maximum": 0.0}, {"process_weight": 2.0}, {"shift": -1.0}):
        with pytest.raises(RecipeError, match=f"cannot take `{next(iter(options))}: "):
            renorm(judged([0.5], 1.0), **options)


def test_an_episode_that_was_cut_off() -> None:  # rule 4
    cut = {"truncated": [False, True], "terminated": [False, False]}
    assert close(renorm(judged([0.5], 0.0, process=[0.5, 0.25], **cut)), [-0.5, -0.75])
    assert close(renorm(judged([0.5], 0.0, **cut)), [-0.5, -0.5])


# ---- noisy judge ------------------------------------------------------------------------------------------
def test_errors_of_a_judge() -> None:  # rule 5
    table = judged([0.25] * 4000, 1.0)
    judge = NoisyJudge(accuracy=0.8)
    heard = judge(table, look(seed=7))["process"]
    assert set(heard[:-1].tolist()) == {0.25, 0.75} and bool(heard[-1].isnan())
    assert 0.77 < float((heard[:-1] == 0.25).float().mean()) < 0.83
    assert judge.learn(table, look())["judge/turned"] == pytest.approx(float((heard == 0.75).float().mean()), abs=1e-3)
    again = NoisyJudge(accuracy=0.8)
    again.load_state_dict(judge.state_dict())
    assert torch.equal(again(table, look(seed=7))["process"].nan_to_num(), heard.nan_to_num())
    assert not torch.equal(judge(table, look(seed=8))["process"].nan_to_num(), heard.nan_to_num())
    sure = NoisyJudge(accuracy=1.0)(table, look())["process"]
    assert torch.equal(sure.nan_to_num(), table["process"].nan_to_num())
    with pytest.raises(MissingColumn, match="process"):
        judge(answers(1.0, 2.0), look())


# ---- running scale ----------------------------------------------------------------------------------------
def test_two_batches() -> None:  # rule 6
    scale, centered = RunningScale(), RunningScale(center=True)
    assert close(scale(answers(1, 3), look()), [0.7071, 2.1213])
    assert scale.mean == 2 and scale.std == pytest.approx(1.4142, abs=1e-4)
    centered(answers(1, 3), look())
    assert close(scale(answers(2, 6), look()), [0.9258, 2.7775])
    assert scale.learn(answers(2, 6), look()) == pytest.approx(
        {"reward/running_mean": 3.0, "reward/running_std": 2.1602}, abs=1e-4
    )
    assert close(centered(answers(2, 6), look()), [-0.4629, 1.3887])


@quick
@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=6), min_size=1, max_size=5))
def test_batches_are_merged(batches: list[list[int]]) -> None:  # rule 6
    scale = RunningScale()
    for batch in batches:
        scale(answers(*map(float, batch)), look())
    every = torch.tensor([float(score) for batch in batches for score in batch], dtype=torch.float64)
    assert scale.count == len(every)
    assert scale.mean == pytest.approx(float(every.mean()))
    assert scale.std == pytest.approx(float(every.std()), abs=1e-9)


def test_returns_that_never_differ() -> None:  # rule 7
    scale = RunningScale(center=True)
    for _ in range(3):
        assert close(scale(answers(0.1, 0.1, 0.1), look()), [0.0] * 3)
    assert RunningScale()(answers(0.1, 0.1, 0.1), look()).tolist() == pytest.approx([0.1] * 3)
    with pytest.raises(InvalidData, match="1 returns have no deviation"):
        RunningScale()(answers(1.0), look())
    assert RunningScale(clip=1.0)(answers(1, 3), look()).tolist() == pytest.approx([0.7071, 1.0], abs=1e-4)
    with pytest.raises(RecipeError, match="clip"):
        RunningScale(clip=0.0)


@quick
@given(tables())
def test_steps_are_scaled_together(table: StepTable) -> None:  # rule 8
    scale = RunningScale(center=True, clip=None)
    found, returns = scale(table, look()), total_return(table).double()
    unit = scale.std or 1.0
    assert close(total_return(table.replace(reward=found)), (returns - scale.mean) / unit)
    order, last = table.timeline("trajectory")
    before = order[~last]
    assert close(found[before], table["reward"][before].double() / unit)


def test_moments_are_saved() -> None:  # rule 9
    first, second = RunningScale(), RunningScale()
    first(answers(1, 3), look())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(answers(2, 6), look()), second(answers(2, 6), look()))


# ---- dense, then sparse -----------------------------------------------------------------------------------
def climbing(**columns: Any) -> StepTable:
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["x"] * 6,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0.0] * 6,
        "progress": [1.0, 0.0, 1.0, 2.0, 0.0, 1.0],
        "outcome": [1.0] * 4 + [0.0] * 2,
        "invalid": [False, True, False, False, False, False],
    }
    return StepTable(**{**base, **columns})


def test_progress() -> None:  # rules 10 and 11
    reward = DenseThenSparse(dense=5)
    assert reward(climbing(), look(4)).tolist() == [1.0, -0.5, 0.0, 4.0, 0.0, 1.0]
    assert reward.learn(climbing(), look(4)) == {"reward/dense": 1.0}
    assert reward(climbing(), look(5)).tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    assert reward.learn(climbing(), look(5)) == {"reward/dense": 0.0}
    assert DenseThenSparse(progress=0.0)(climbing(invalid=None), look()).tolist() == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]


@quick
@given(tables(), st.integers(0, 10**6))
def test_each_height_pays_once(table: StepTable, seed: int) -> None:  # rule 10
    dice = torch.Generator().manual_seed(seed)
    table = table.replace(progress=torch.randint(-2, 4, (len(table),), generator=dice).float())
    paid = DenseThenSparse(success=0.0)(table, look())
    heights: dict[int, float] = {}
    expected = torch.zeros(len(table))
    for row in sorted(range(len(table)), key=lambda r: int(table["turn"][r])):
        name, here = int(table["trajectory"][row]), float(table["progress"][row])
        expected[row] = float(here > heights.get(name, 0.0))
        heights[name] = max(heights.get(name, 0.0), here)
    assert torch.equal(paid, expected)
    order = shuffled(table, seed)
    assert torch.equal(DenseThenSparse(success=0.0)(table.take(order), look()), paid[order])


def test_what_it_needs() -> None:  # rule 12
    with pytest.raises(MissingColumn, match="progress"):
        DenseThenSparse()(climbing(progress=None), look())
    with pytest.raises(InvalidData, match="1 of 2 trajectories have no outcome"):
        DenseThenSparse()(climbing(outcome=[1.0] * 4 + [NAN] * 2), look())


def test_padding() -> None:  # rule 13
    padded = {"weight": [1.0, 1.0, 0.0]}
    assert renorm(judged([0.5, 0.5], 1.0, process=[0.5, NAN, 9.0], **padded)).tolist() == [0.5, 0.5, 0.0]
    scale = RunningScale()
    assert close(scale(answers(1, 3, 99, **padded), look()), [0.7071, 2.1213, 0.0])
    assert scale.count == 2
    weights = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert DenseThenSparse()(climbing(weight=weights), look()).tolist() == [1.0, -0.5, 3.0, 0.0, 0.0, 1.0]
