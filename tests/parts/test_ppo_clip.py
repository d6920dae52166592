"""The clipped surrogate: (1) at ratio 1 its gradient is REINFORCE's, at every level; (2) one token a row makes tokens
and turns the same; (3) a clipped token has no gradient, and the metrics count it; (4) equal bounds and dual ∞ are
the plain loss; (5) a batch that cuts trajectories is refused, so are bounds that make no sense; (6) with a cap the
regularizer `kl` is the plain one below it, and has no gradient above it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import aggregate, segment_mean
from palaestra.data import TokenBatch
from palaestra.data.keys import Key, compact
from palaestra.errors import ContractError, MissingColumn, RecipeError
from palaestra.parts.losses import ppo_clip, reinforce
from palaestra.parts.regularizers import entropy, kl, value
from tests.messages import told
from tests.parts.batches import batches, filled, quick


def gradient(loss: Any, batch: TokenBatch, **options: Any) -> torch.Tensor:
    leaf = batch["logprob"].clone().requires_grad_()
    aggregate(loss(batch.replace(logprob=leaf), **options)[0], batch).backward()
    assert leaf.grad is not None
    return leaf.grad


def even(batch: TokenBatch) -> TokenBatch:
    """One advantage and one weight per trajectory, as group estimators give them; nothing masked."""
    key = Key(*compact(batch.trajectory))
    return batch.replace(
        advantage=segment_mean(batch["advantage"], by=key)[key.codes], weight=torch.ones_like(batch["weight"])
    )


@pytest.mark.parametrize("ratio", ["token", "turn", "trajectory"])
@quick
@given(batch=batches(on_policy=True))
def test_ratio_one_is_reinforce(ratio: Any, batch: TokenBatch) -> None:  # rule 1
    batch = even(batch)
    torch.testing.assert_close(gradient(ppo_clip, batch, ratio=ratio), gradient(reinforce, batch))


@quick
@given(batches(on_policy=True))
def test_ratio_one_is_reinforce_with_any_weight(batch: TokenBatch) -> None:  # rule 1
    torch.testing.assert_close(gradient(ppo_clip, batch), gradient(reinforce, batch))


@quick
@given(batches(one_token=True))
def test_a_token_is_a_turn(batch: TokenBatch) -> None:  # rule 2
    token, turn = ppo_clip(batch), ppo_clip(batch, ratio="turn")
    kept = batch["weight"] > 0
    torch.testing.assert_close(token[0][kept], turn[0][kept])
    torch.testing.assert_close(token[1]["policy/clip_fraction"][kept], turn[1]["policy/clip_fraction"][kept])


@quick
@given(batches())
def test_clipped_tokens_stand_still(batch: TokenBatch) -> None:  # rule 3
    _, metrics = ppo_clip(batch)
    stuck = metrics["policy/clip_fraction"] > 0
    assert bool((gradient(ppo_clip, batch)[stuck] == 0).all())
    both = metrics["policy/clip_fraction_high"] + metrics["policy/clip_fraction_low"]
    assert torch.equal(both, metrics["policy/clip_fraction"])
    assert bool((metrics["policy/kl"] >= 0).all())


@quick
@given(batches())
def test_neutral_bounds(batch: TokenBatch) -> None:  # rule 4
    assert torch.equal(ppo_clip(batch)[0], ppo_clip(batch, low=0.2, high=0.2, dual=1e9)[0])


def test_cut_trajectories_are_refused() -> None:  # rule 5
    batch = filled([[2, 1], [3]], 1).replace(scope="row")
    assert len(ppo_clip(batch, ratio="turn")[0]) == 6
    with told(ContractError, "part of a trajectory"):
        ppo_clip(batch, ratio="trajectory")


@pytest.mark.parametrize("options", [{"low": 1.0}, {"low": -0.1}, {"high": -0.1}, {"dual": 1.0}, {"ratio": "word"}])
def test_bounds_out_of_range(options: dict[str, Any]) -> None:  # rule 5
    with pytest.raises(RecipeError, match=next(iter(options))):
        ppo_clip(filled([[1], [1]], 0), **options)


@pytest.mark.parametrize(("part", "column"), [(kl, "logprob_reference"), (entropy, "entropy"), (value, "value")])
def test_missing_columns(part: Any, column: str) -> None:
    batch = filled([[1], [1]], 0).replace(**{column: None})
    with pytest.raises(MissingColumn, match=f"no column `{column}`"):
        part(batch)


def test_clipped_values_need_the_old_ones() -> None:
    with pytest.raises(MissingColumn, match="`value_old`"):
        value(filled([[1], [1]], 0).replace(value_old=None), clip=0.2)


def test_extreme_ratios_stay_finite() -> None:
    batch = filled([[2], [2]], 0)
    far = batch.replace(logprob=torch.full((4,), -200.0).double(), logprob_old=torch.full((4,), -1.0).double())
    for one in (far, far.replace(logprob=far["logprob_old"], logprob_old=far["logprob"])):
        assert bool(ppo_clip(one)[0].isfinite().all())


@quick
@given(batch=batches())
def test_the_cap_of_the_reference_kl(batch: TokenBatch) -> None:  # rule 6
    gaps = torch.linspace(-120.0, 120.0, len(batch["logprob"]), dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        far = batch.replace(logprob_reference=(batch["logprob"] + gaps).to(dtype), logprob=batch["logprob"].to(dtype))
        plain, capped = kl(far, coefficient=1.0)[0], kl(far, coefficient=1.0, cap=10.0)[0]
        below = plain <= 10
        assert torch.equal(capped[below], plain[below]) and bool((capped[~below] == 10).all())
        slope, free = gradient(kl, far, cap=10.0), gradient(kl, far)
        assert bool(slope.isfinite().all()) and not bool(slope[~below].any())
        assert torch.equal(slope[below], free[below])
    with told(RecipeError, "`cap: 10`"):
        kl(batch, estimator="k1", cap=10.0)
