"""The guarded clip: (1) below the bound it is the plain clipped loss; (2) above it the whole row, and no other, loses
the unclipped term; (3) log-probabilities that are not finite and a bound of 1 are refused.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from palaestra.data import TokenBatch
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.systems.vl_dac.ppo_clip_guarded import ppo_clip_guarded
from tests.parts.batches import batches, filled, quick


@quick
@given(batch=batches())
def test_below_the_bound(batch: TokenBatch) -> None:  # rule 1
    plain, found = ppo_clip(batch, low=0.1, high=0.1), ppo_clip_guarded(batch, bound=1e6)
    torch.testing.assert_close(found[0], plain[0])
    assert not found[1]["policy/guarded"].any()
    for name in ("policy/clip_fraction", "policy/kl", "policy/ratio"):
        torch.testing.assert_close(found[1][name], plain[1][name])


def test_above_the_bound() -> None:  # rule 2
    batch = filled([[3], [2]], 0)
    logprob = torch.tensor([12.0, 1.05, 5.0, 5.0, 1.05], dtype=torch.float64).log().requires_grad_()
    ones = torch.ones(5, dtype=torch.float64)
    batch = batch.replace(logprob=logprob, logprob_old=torch.zeros(5), advantage=-ones, weight=ones)
    loss, metrics = ppo_clip_guarded(batch)
    assert loss.tolist() == pytest.approx([1.1, 1.05, 1.1, 5.0, 1.05])
    assert metrics["policy/guarded"].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([0.0, 1.05, 0.0, 5.0, 1.05])
    masked = ppo_clip_guarded(batch.replace(weight=torch.tensor([0.0, 1, 1, 1, 1])))[0]
    assert masked[1:].tolist() == pytest.approx([1.05, 5.0, 5.0, 1.05]), "a masked token does not trigger the guard"


def test_refusals() -> None:  # rule 3
    batch = filled([[2, 1], [3]], 1)
    spoiled = batch.replace(weight=torch.ones(6), logprob=torch.full((6,), math.nan))
    with pytest.raises(InvalidData, match="6 of 6 tokens have a log-probability that is not finite"):
        ppo_clip_guarded(spoiled)
    with pytest.raises(RecipeError, match="bound"):
        ppo_clip_guarded(batch, bound=1.0)
