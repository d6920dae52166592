"""The running scale:

1. The moments of all batches are merged, as if the batches had come at once.
2. Equal returns are not scaled, and a single one is refused.
3. All steps of a trajectory are divided by the same number; the mean is subtracted from the last row.
4. A resumed run continues with the same moments.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import total_return
from palaestra.data import Batch, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.ppo_max import RunningScale
from tests.parts.small_tables import answers, at
from tests.parts.tables import close, quick, tables


def test_two_batches() -> None:  # rule 1
    scale, centered = RunningScale(), RunningScale(center=True)
    assert close(scale(answers(1, 3), at()), [0.7071, 2.1213])
    assert scale.mean == 2 and scale.std == pytest.approx(1.4142, abs=1e-4)
    centered(answers(1, 3), at())
    assert close(scale(answers(2, 6), at()), [0.9258, 2.7775])
    assert scale.update(Batch.of((), answers(2, 6)), at()) == pytest.approx(
        {"reward/running_mean": 3.0, "reward/running_std": 2.1602}, abs=1e-4
    )
    assert close(centered(answers(2, 6), at()), [-0.4629, 1.3887])


@quick
@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=6), min_size=1, max_size=5))
def test_batches_are_merged(batches: list[list[int]]) -> None:  # rule 1
    scale = RunningScale()
    for batch in batches:
        scale(answers(*map(float, batch)), at())
    every = torch.tensor([float(score) for batch in batches for score in batch], dtype=torch.float64)
    assert scale.count == len(every)
    assert scale.mean == pytest.approx(float(every.mean()))
    assert scale.std == pytest.approx(float(every.std()), abs=1e-9)


def test_returns_that_never_differ() -> None:  # rule 2
    scale = RunningScale(center=True)
    for _ in range(3):
        assert close(scale(answers(0.1, 0.1, 0.1), at()), [0.0] * 3)
    assert RunningScale()(answers(0.1, 0.1, 0.1), at()).tolist() == pytest.approx([0.1] * 3)
    with pytest.raises(InvalidData, match="the run has 1 returns so far"):
        RunningScale()(answers(1.0), at())
    assert RunningScale(clip=1.0)(answers(1, 3), at()).tolist() == pytest.approx([0.7071, 1.0], abs=1e-4)
    with pytest.raises(RecipeError, match="clip"):
        RunningScale(clip=0.0)


@quick
@given(tables())
def test_steps_are_scaled_together(table: StepTable) -> None:  # rule 3
    scale = RunningScale(center=True, clip=None)
    found, returns = scale(table, at()), total_return(table).double()
    unit = scale.std or 1.0
    assert close(total_return(table.replace(reward=found)), (returns - scale.mean) / unit)
    order, last = table.timeline("trajectory")
    before = order[~last]
    assert close(found[before], table["reward"][before].double() / unit)


def test_moments_are_saved() -> None:  # rule 4
    first, second = RunningScale(), RunningScale()
    first(answers(1, 3), at())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(answers(2, 6), at()), second(answers(2, 6), at()))
