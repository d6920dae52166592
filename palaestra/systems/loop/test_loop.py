"""LOOP: (1) a trajectory counts once, however long it is; (2) without a threshold it is RLOO, and with a scale RLOO
divided by the deviation; (3) groups without peers, a mismatch of sampler and trainer, and bad options are refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.algebra import segment_std, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import rloo
from palaestra.systems.loop import loop
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


@quick
@given(tables())
def test_loop_is_rloo_without_small_ones(some: StepTable) -> None:  # rule 2
    base = rloo(some)
    assert torch.equal(loop(some, threshold=0.0), base)
    kept = loop(some, threshold=0.5)
    assert torch.equal(kept, torch.where(base.abs() < 0.5, 0.0, base))


@quick
@given(tables(one_row=True))
def test_loop_with_scale(some: StepTable) -> None:  # rule 2
    deviation = segment_std(total_return(some), by=some.key("group"), ddof=0)[some["group"]]
    assert close(loop(some, scale="std", threshold=0.0), rloo(some).double() / deviation.clamp_min(1e-7))


def test_loop_counts_trajectories_once() -> None:  # rule 1
    long = StepTable(group=["g"] * 4, trajectory=["a", "a", "a", "b"], agent=["x"] * 4, turn=[0, 1, 2, 0],
                     reward=[0, 0, 1, 0])  # fmt: skip
    assert close(loop(long, scale="std"), [2, 2, 2, -2])


def test_loop_bad_input() -> None:  # rule 3
    with pytest.raises(InvalidData, match="no peer set has two members"):
        loop(table(trajectory=["a"] * 4, turn=range(4)))
    apart = table(logprob_behavior=[-1.0] * 4, logprob_old=[-1.0, -1.0, -1.0, -5.0])
    with pytest.raises(InvalidData, match="differ by 1 nats a token") as caught:
        loop(apart, largest_gap=0.1)
    assert "at most 0.1 are allowed" in str(caught.value) and "same weights" in str(caught.value)
    assert torch.equal(loop(apart), loop(table()))
    with pytest.raises(RecipeError, match="cannot take `threshold: "):
        loop(table(), threshold=-1.0)
