"""HAPO's loss and advantage:

1. With both strengths 0 the loss is `ppo_clip`, value and gradient bit for bit.
2. Where all entropies are equal, it is `ppo_clip` too.
3. The signal is measured over the mini-batch, so that cutting it into micro-batches changes nothing.
4. Values on masked tokens change nothing, not even NaN.
5. Bounds that reach 0, and missing or negative entropies, are refused.
6. The group's average over trajectories is GRPO bit for bit. Over tokens the advantages sum to 0. A trajectory alone in
   its group has no peers.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable, TokenBatch
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.parts.losses import ppo_clip
from palaestra.systems.hapo.advantage import hapo as hapo_advantage
from palaestra.systems.hapo.loss import hapo
from tests.parts.batches import batches, filled
from tests.parts.tables import quick, tables

BATCH = filled([[2, 1], [3], [1, 1, 2], [2, 2]], 7)


def with_entropy(batch: TokenBatch, entropy: torch.Tensor) -> TokenBatch:
    return batch.replace(entropy_old=entropy)


@quick
@given(batches())
def test_neutral(batch: TokenBatch) -> None:  # rule 1
    one, other = batch["logprob"].clone().requires_grad_(), batch["logprob"].clone().requires_grad_()
    found = hapo(batch.replace(logprob=one), redistribution=0, clip=0, high=0.28)
    expected = ppo_clip(batch.replace(logprob=other), high=0.28, dual=10.0)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())
    (batch["weight"] * found[0]).sum().backward()
    (batch["weight"] * expected[0]).sum().backward()
    assert torch.equal(one.grad, other.grad)


def test_equal_entropies() -> None:  # rule 2
    same = with_entropy(BATCH, torch.full((len(BATCH),), 0.7))
    assert torch.equal(hapo(same)[0], ppo_clip(BATCH, dual=10.0)[0])


def test_cuts() -> None:  # rule 3
    whole = hapo(BATCH)[0]
    for cut in torch.arange(len(BATCH)).split(4):
        part = BATCH.take(cut).replace(minibatch=BATCH)
        assert torch.equal(hapo(part)[0], whole[cut])
    assert not torch.equal(hapo(BATCH.take(torch.arange(4)))[0], whole[:4])  # without `minibatch` the scale differs


def test_masked_tokens() -> None:  # rule 4
    entropy = torch.where(BATCH["weight"] > 0, BATCH["entropy_old"], torch.nan)
    counted = BATCH["weight"] > 0
    assert torch.equal(hapo(with_entropy(BATCH, entropy))[0][counted], hapo(BATCH)[0][counted])
    assert bool(hapo(with_entropy(BATCH, entropy))[0].isfinite().all())


def test_bad_input() -> None:  # rule 5
    with pytest.raises(RecipeError, match=r"of certain tokens, 1 − 0.5 · \(1 \+ 1\), must be positive"):
        hapo(BATCH, low=0.5)
    hapo(BATCH, low=0.5, clip=0.5)
    with pytest.raises(MissingColumn, match="entropy_old"):
        hapo(BATCH.replace(entropy_old=None))
    with pytest.raises(InvalidData, match="an entropy is -1; it must be a number ≥ 0"):
        hapo(with_entropy(BATCH, -torch.ones(len(BATCH))))
    for options in ({"redistribution": 1.5}, {"clip": -0.1}, {"dual": 1.0}, {"quantile": 2.0}, {"low": 1.0}):
        with pytest.raises(RecipeError, match=next(iter(options))):
            hapo(BATCH, **options)


# ---- the group's average ----------------------------------------------------------------------------------
@quick
@given(tables())
def test_average_over_trajectories_is_grpo(table: StepTable) -> None:  # rule 6
    for ddof in (0, 1):
        assert torch.equal(hapo_advantage(table, average="trajectory", ddof=ddof), grpo(table, ddof=ddof))


@quick
@given(tables())
def test_tokens_sum_to_zero(table: StepTable) -> None:  # rule 6
    found = hapo_advantage(table, largest=None)
    total = torch.zeros(table.key("group").size).index_add(0, table.key("group").codes, found * table["token_count"])
    assert bool((total.abs() < 1e-3).all())


def test_lone_trajectory() -> None:  # rule 6
    table = StepTable(
        group=["g", "g", "h", "h"], trajectory=["a", "b", "c", "c"], agent=["x"] * 4, turn=[0, 0, 0, 1],
        reward=[1, 0, 1, 2], token_count=[1, 2, 3, 4],
    )  # fmt: skip
    assert hapo_advantage(table)[2:].tolist() == [0.0, 0.0]
    assert hapo_advantage(table, singleton="raw")[2:].tolist() == [3.0, 3.0]
    with pytest.raises(InvalidData, match="no peer set has two members"):
        hapo_advantage(table.take(torch.tensor([2, 3])))
