"""The clip of rows whose prompt is not the one they were sampled with: (1) no flag, no difference; (2) a wider bound
lets more through there and nowhere else; (3) a negative bound is refused; (4) at ratio 1 LOOP's range is no range.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.data import TokenBatch
from palaestra.errors import RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.testing import check_loss
from tests.parts.batches import batches, quick


@quick
@given(batch=batches())
def test_without_flag_or_bound(batch: TokenBatch) -> None:  # rule 1
    plain = ppo_clip(batch, high=0.1)[0]
    assert torch.equal(ppo_clip(batch.replace(foreign=None), high=0.1, high_foreign=0.6)[0], plain)
    assert torch.equal(ppo_clip(batch, high=0.1, high_foreign=0.1)[0], plain)


@quick
@given(batch=batches())
def test_wider_for_foreign_rows_only(batch: TokenBatch) -> None:  # rule 2
    assert batch["foreign"] is not None
    plain, wide = ppo_clip(batch, high=0.05)[0], ppo_clip(batch, high=0.05, high_foreign=0.6)[0]
    own = batch["foreign"] == 0
    assert torch.equal(plain[own], wide[own]) and bool((wide <= plain).all())
    check_loss(ppo_clip, batch, high=0.05, high_foreign=0.6)


def test_bounds() -> None:  # rule 3
    with pytest.raises(RecipeError, match="cannot take `high_foreign: -1"):
        ppo_clip(None, high_foreign=-1.0)  # type: ignore[arg-type]


@quick
@given(batch=batches(on_policy=True))
def test_the_first_gradient_of_loop(batch: TokenBatch) -> None:  # rule 4
    leaf = batch["logprob"].clone().requires_grad_()
    loss = ppo_clip(batch.replace(logprob=leaf), form="multiplicative", low=0.1, high=0.1)[0]
    loss.sum().backward()
    assert leaf.grad is not None
    counts = batch["weight"] > 0
    assert torch.allclose(leaf.grad[counts], -batch["advantage"][counts])
