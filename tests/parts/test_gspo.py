"""GSPO: (1) at the level of tokens it is the clipped surrogate, bit for bit; with one token a unit, at every level;
(2) unclipped, each token of a response has the gradient −A s / L; (3) the form of the unit and that of the token agree
in value, and in gradient where a unit has one advantage; (4) one ratio a unit: it is clipped as a whole; (5) its spread
falls as 1/L; (6) a response of which no token counts is skipped; (7) bad input is refused.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import aggregate, segment_mean, segment_range
from palaestra.data import TokenBatch
from palaestra.data.keys import Key, compact
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.parts.losses import gspo, ppo_clip
from tests.messages import told
from tests.parts.batches import batches, filled, quick

WIDE = {"low": 0.2, "high": 0.2}


def gradient(loss: Any, batch: TokenBatch, **options: Any) -> torch.Tensor:
    leaf = batch["logprob"].clone().requires_grad_()
    aggregate(loss(batch.replace(logprob=leaf), **options)[0], batch, how="sequence-mean").backward()
    assert leaf.grad is not None
    return leaf.grad


def even(batch: TokenBatch) -> TokenBatch:
    """One advantage per trajectory and nothing masked, as group estimators give it."""
    key = Key(*compact(batch.trajectory))
    advantage = segment_mean(batch["advantage"], by=key)[key.codes]
    return batch.replace(advantage=advantage, weight=torch.ones_like(batch["weight"]))


@pytest.mark.parametrize("form", ["unit", "token"])
@quick
@given(batch=batches())
def test_tokens_are_the_clipped_surrogate(form: Any, batch: TokenBatch) -> None:  # rule 1
    assert torch.equal(gspo(batch, level="token", gradient=form, **WIDE)[0], ppo_clip(batch)[0])
    assert torch.equal(gradient(gspo, batch, level="token", gradient=form, **WIDE), gradient(ppo_clip, batch))


@pytest.mark.parametrize("form", ["unit", "token"])
@quick
@given(batch=batches(one_token=True))
def test_one_token_a_unit(form: Any, batch: TokenBatch) -> None:  # rule 1
    assert torch.equal(gspo(batch, level="turn", gradient=form, **WIDE)[0], ppo_clip(batch)[0])
    alone, kept = batch.replace(trajectory=torch.arange(len(batch))), batch["weight"] > 0
    assert torch.equal(gspo(alone, gradient=form, advantage_unit="unit", **WIDE)[0][kept], ppo_clip(alone)[0][kept])


@pytest.mark.parametrize("form", ["unit", "token"])
def test_gradient_of_a_token(form: Any) -> None:  # rule 2
    batch = filled([[3], [1, 1]], 0).replace(
        logprob=torch.tensor([0.5, 0.4, 0.3, 0.5, 0.5]).double().log(),
        logprob_old=torch.tensor([0.4, 0.4, 0.4, 0.5, 0.5]).double().log(),
        advantage=torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0]).double(),
        weight=torch.ones(5).double(),
    )
    s = 0.9375 ** (1 / 3)
    wanted = torch.tensor([-2 * s / 3] * 3 + [1 / 2] * 2).double() / 2  # the mean over two responses
    torch.testing.assert_close(gradient(gspo, batch, gradient=form, **WIDE), wanted)


@pytest.mark.parametrize("level", ["turn", "sequence"])
@quick
@given(batch=batches())
def test_forms_agree(level: Any, batch: TokenBatch) -> None:  # rule 3
    batch = even(batch)
    unit, token = (gspo(batch, level=level, gradient=form, **WIDE)[0] for form in ("unit", "token"))
    torch.testing.assert_close(unit, token)
    unit, token = (gradient(gspo, batch, level=level, gradient=form, **WIDE) for form in ("unit", "token"))
    torch.testing.assert_close(unit, token)


@quick
@given(batches())
def test_whole_responses_are_clipped(batch: TokenBatch) -> None:  # rule 4
    batch = even(batch)
    metrics = gspo(batch, low=0.02, high=0.02)[1]
    key = Key(*compact(batch.trajectory))
    for name in ("policy/ratio", "policy/clip_fraction"):
        assert float(segment_range(metrics[name], by=key).max()) == 0.0
    stuck = metrics["policy/clip_fraction"] > 0
    assert bool((gradient(gspo, batch, low=0.02, high=0.02)[stuck] == 0).all())
    both = metrics["policy/clip_fraction_high"] + metrics["policy/clip_fraction_low"]
    assert torch.equal(both, metrics["policy/clip_fraction"])


@pytest.mark.parametrize("length", [4, 25])
def test_spread_falls_with_length(length: int) -> None:  # rule 5
    batch = even(filled([[length]] * 2000, 1))
    noise = 0.2 * torch.randn(len(batch), generator=torch.Generator().manual_seed(0)).double()
    metrics = gspo(batch.replace(logprob_old=batch["logprob"] - noise))[1]
    shrunk = float(metrics["policy/token_spread"].mean() / metrics["policy/spread"].mean())
    assert shrunk == pytest.approx(length, rel=0.15)


def test_empty_responses_are_skipped() -> None:  # rule 6
    batch = filled([[2], [2]], 3).replace(weight=torch.tensor([0.0, 0.0, 1.0, 1.0]).double())
    spoiled = batch.replace(logprob_old=torch.where(batch["weight"] > 0, batch["logprob_old"], math.nan))
    for form in ("unit", "token"):
        found = gradient(gspo, spoiled, gradient=form)
        assert bool(found.isfinite().all()) and found[:2].tolist() == [0.0, 0.0]


def test_refusals() -> None:  # rule 7
    batch = filled([[2, 1], [3]], 1).replace(weight=torch.ones(6).double())
    with told(ContractError, "part of a trajectory"):
        gspo(batch.replace(scope="row"))
    with told(InvalidData, "6 of 6"):
        gspo(batch.replace(logprob=torch.full((6,), -math.inf).double()))
    for wrong in ({"level": "word"}, {"low": 1.0}, {"high": -0.1}, {"cap": 0.0}, {"advantage_unit": "row"}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            gspo(batch, **wrong)  # type: ignore[arg-type]


def test_far_ratios_stay_finite() -> None:  # rule 7
    batch = even(filled([[2], [2]], 0))
    far = batch.replace(logprob=torch.full((4,), -200.0).double(), logprob_old=torch.full((4,), -1.0).double())
    for one in (far, far.replace(logprob=far["logprob_old"], logprob_old=far["logprob"])):
        assert bool(gspo(one)[0].isfinite().all())
        assert float(gspo(one)[1]["policy/ratio"].max()) <= math.exp(10) * 1.001
