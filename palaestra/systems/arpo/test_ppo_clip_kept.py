"""The clip that keeps its gradient:

1. With `keep: 0` it is the plain clip, bit for bit.
2. A token with A > 0 beyond the bound has the gradient of the bound; all others have that of the plain clip.
3. Every token with A > 0 has a gradient.
4. Refusals.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.errors import RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.systems.arpo.ppo_clip_kept import ppo_clip_kept
from tests.parts.batches import batches, filled, quick


def gradient(part: object, batch: TokenBatch, **options: float) -> tuple[Tensor, Tensor]:
    logprob = batch["logprob"].clone().requires_grad_()
    loss = part(batch.replace(logprob=logprob), **options)[0]  # type: ignore[operator]
    loss.sum().backward()
    assert logprob.grad is not None
    return loss.detach(), logprob.grad


@quick
@given(batch=batches())
def test_nothing_kept(batch: TokenBatch) -> None:  # rule 1
    plain, found = (
        gradient(ppo_clip, batch, low=0.2, high=0.28),
        gradient(ppo_clip_kept, batch, low=0.2, high=0.28, keep=0.0),
    )
    assert torch.equal(plain[0], found[0]) and torch.equal(plain[1], found[1])
    metrics = ppo_clip_kept(batch, keep=0.0)[1]
    assert torch.equal(metrics["policy/clip_fraction"], ppo_clip(batch, high=0.28)[1]["policy/clip_fraction"])


def test_the_gradient_of_the_bound() -> None:  # rule 2
    batch = filled([[3], [2]], 0)
    ratio = torch.tensor([1.6, 1.6, 0.6, 1.1, 0.6], dtype=torch.float64)
    advantage = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    batch = batch.replace(logprob=ratio.log(), logprob_old=torch.zeros(5), advantage=advantage, weight=torch.ones(5))
    loss, found = gradient(ppo_clip_kept, batch)
    assert loss.tolist() == pytest.approx([-1.28, 1.6, -0.6, -1.1, 0.8])
    assert found.tolist() == pytest.approx([-1.28, 1.6, -0.6, -1.1, 0.0])
    plain = gradient(ppo_clip, batch, high=0.28)[1]
    assert plain.tolist() == pytest.approx([0.0, 1.6, -0.6, -1.1, 0.0])
    half = gradient(ppo_clip_kept, batch, keep=0.5)[1]
    assert half.tolist() == pytest.approx([-0.64, 1.6, -0.6, -1.1, 0.0])


@quick
@given(batch=batches())
def test_no_good_token_learns_nothing(batch: TokenBatch) -> None:  # rule 3
    batch = batch.replace(weight=torch.ones(len(batch)))
    _, found = gradient(ppo_clip_kept, batch)
    assert bool((found[batch["advantage"] > 0] != 0).all())
    assert not ppo_clip_kept(batch)[1]["policy/zero_gradient_positive"].any()
    idle = ppo_clip_kept(batch, keep=0.0)[1]["policy/zero_gradient_positive"]
    assert torch.equal(idle > 0, (batch["advantage"] > 0) & (gradient(ppo_clip, batch, high=0.28)[1] == 0))


@pytest.mark.parametrize("options", [{"low": 1.0}, {"high": -0.1}, {"keep": 1.5}])
def test_refusals(options: dict[str, float]) -> None:  # rule 4
    with pytest.raises(RecipeError, match=next(iter(options))):
        ppo_clip_kept(filled([[2]], 0), **options)
