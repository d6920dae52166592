"""CISPO:

1. At ratio 1 it is REINFORCE, bit for bit.
2. The gradient is exactly −w A; none flows through w.
3. Every token keeps its gradient, also where the clipped surrogate has none, as on a rare token that became likelier.
4. The weight is bounded above, and below only if `low` is set.
5. Bad input is refused.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import TokenBatch
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.losses import ppo_clip, reinforce
from palaestra.systems.cispo import cispo
from tests.parts.batches import batches, filled, quick


def gradient(loss: Any, batch: TokenBatch, **options: Any) -> torch.Tensor:
    leaf = batch["logprob"].clone().requires_grad_()
    loss(batch.replace(logprob=leaf), **options)[0].sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@quick
@given(batches(on_policy=True))
def test_ratio_one_is_reinforce(batch: TokenBatch) -> None:  # rule 1
    kept = batch["weight"] > 0
    assert torch.equal(cispo(batch)[0][kept], reinforce(batch)[0][kept])
    assert torch.equal(gradient(cispo, batch)[kept], gradient(reinforce, batch)[kept])


@quick
@given(batches())
def test_no_gradient_through_the_weight(batch: TokenBatch) -> None:  # rule 2
    kept = batch["weight"] > 0
    ratio = torch.exp(batch["logprob"] - batch["logprob_old"])
    wanted = torch.where(kept, -ratio.clamp(max=1.1) * batch["advantage"], 0.0)
    torch.testing.assert_close(gradient(cispo, batch, high=0.1), wanted)


@quick
@given(batches())
def test_every_token_keeps_its_gradient(batch: TokenBatch) -> None:  # rule 3
    kept = (batch["weight"] > 0) & (batch["advantage"] != 0)
    metrics = cispo(batch, high=0.05)[1]
    assert bool((gradient(cispo, batch, high=0.05)[kept] != 0).all())
    assert bool((metrics["policy/clip_fraction"] == 0).all())


def test_rare_tokens_go_on_growing() -> None:  # rule 3
    batch = filled([[2]], 0).replace(
        logprob=torch.tensor([0.15, 0.6]).double().log(),
        logprob_old=torch.tensor([0.05, 0.55]).double().log(),
        advantage=torch.ones(2).double(),
        weight=torch.ones(2).double(),
    )
    assert gradient(ppo_clip, batch).tolist() == [0.0, pytest.approx(-0.6 / 0.55)]
    assert gradient(cispo, batch, high=0.5).tolist() == pytest.approx([-1.5, -0.6 / 0.55])
    metrics = cispo(batch, high=0.5)[1]
    assert metrics["policy/weight_clipped"].tolist() == [1.0, 0.0]
    assert metrics["policy/surrogate"].tolist() == pytest.approx([-1.5, -0.6 / 0.55])


def test_bounds() -> None:  # rule 4
    batch = filled([[3]], 0).replace(
        logprob=torch.tensor([0.02, 0.5, 0.9]).double().log(),
        logprob_old=torch.tensor([0.5, 0.5, 0.1]).double().log(),
        advantage=-torch.ones(3).double(),
        weight=torch.ones(3).double(),
    )
    assert gradient(cispo, batch).tolist() == pytest.approx([0.04, 1.0, 3.0])
    assert gradient(cispo, batch, low=1.5).tolist() == pytest.approx([0.04, 1.0, 3.0]), "bounds nothing"
    assert gradient(cispo, batch, low=0.3, high=0.0).tolist() == pytest.approx([0.7, 1.0, 1.0])
    far = batch.replace(logprob=torch.full((3,), -1.0).double(), logprob_old=torch.full((3,), -900.0).double())
    assert bool(cispo(far, high=1e30)[0].isfinite().all())


def test_refusals() -> None:  # rule 5
    batch = filled([[2, 1], [3]], 1).replace(weight=torch.ones(6).double())
    with pytest.raises(InvalidData, match="6 of 6 tokens have a log-probability that is not finite"):
        cispo(batch.replace(logprob_old=torch.full((6,), math.nan).double()))
    for wrong in ({"high": -1.0}, {"high": -2.0}, {"low": -0.1}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            cispo(batch, **wrong)
