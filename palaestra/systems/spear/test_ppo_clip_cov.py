"""Clipping by covariance:

1. A share of 0 is the plain clipped surrogate bit for bit.
2. The tokens that lose their loss lie between the bounds, are not clipped already, and are of the given number.
3. Their choice depends on the seed.
4. A part of a mini-batch is refused.
5. Impossible bounds are refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import TokenBatch
from palaestra.errors import ContractError, RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.systems.spear.ppo_clip_cov import ppo_clip_cov
from tests.parts.batches import batches, filled, quick


@quick
@given(batches())
def test_no_share_is_the_plain_loss(batch: TokenBatch) -> None:  # rule 1
    plain, cut = ppo_clip(batch, high=0.28)[0], ppo_clip_cov(batch, share=0)[0]
    assert torch.equal(plain, cut)


def test_covariance() -> None:  # rule 2
    batch = filled([[4]], 0)
    probability = torch.tensor([0.9, 0.5, 0.1, 0.8], dtype=torch.float64)
    batch = batch.replace(
        weight=torch.ones(4), advantage=torch.tensor([1.0, 1, -1, 1]).double(), logprob=probability.log()
    )
    found = ppo_clip_cov(batch, share=0)[1]["policy/covariance"]
    assert torch.allclose(found, torch.tensor([0.3628, 0.0690, 2.2073, 0.3040]).double(), atol=5e-5)


@quick
@given(batches(), st.integers(0, 99))
def test_what_is_cut(batch: TokenBatch, seed: int) -> None:  # rules 2 and 3
    lower, upper = 0.1, 1.0
    loss, metrics = ppo_clip_cov(batch.replace(seed=seed), share=0.3, lower=lower, upper=upper)
    cut, covariance = metrics["policy/cov_clipped"] > 0, metrics["policy/covariance"]
    counts = batch["weight"] > 0
    could = counts & (metrics["policy/clip_fraction"] == 0) & (covariance > lower) & (covariance < upper)
    assert int(cut.sum()) == min(max(1, int(0.3 * int(counts.sum()))), int(could.sum()))
    assert bool((could | ~cut).all()) and bool((loss[cut] == 0).all())
    again = ppo_clip_cov(batch.replace(seed=seed), share=0.3, lower=lower, upper=upper)[0]
    assert torch.equal(loss, again)


def test_other_seeds_draw_others() -> None:  # rule 3
    batch = filled([[3, 3, 3]] * 6, 1)
    masks = {
        tuple((ppo_clip_cov(batch.replace(seed=seed), share=0.02, lower=0.0)[0] == 0).tolist()) for seed in range(9)
    }
    assert len(masks) > 1


@quick
@given(batches())
def test_a_cut_is_refused(batch: TokenBatch) -> None:  # rule 4
    with pytest.raises(ContractError, match="only a part of a minibatch"):
        ppo_clip_cov(batch.take(torch.arange(len(batch) // 2)).replace(scope="group"), share=0.3, lower=0.0)


def test_impossible_bounds() -> None:  # rule 5
    with pytest.raises(RecipeError, match="no covariance lies between `lower: 5` and `upper: 5`"):
        ppo_clip_cov(filled([[2]], 0), lower=5.0, upper=5.0)
