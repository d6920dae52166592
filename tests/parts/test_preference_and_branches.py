"""Losses over pairs and over branches.

Pairs: (1) the gradient raises the better episode and lowers the worse one, by what the formula says; (2) equal outcomes
and single episodes teach nothing; (3) episodes without outcome, batches without reference, cut groups and groups of
several tasks are refused. Branches: (4) without twins it is `ppo_clip` bit for bit, gradient included; (5) the twin's
gradient is that of REINFORCE, whatever the old policy; (6) equal branches align with 0 in value and gradient; (7) order
of tokens and micro-batches of whole groups change nothing; (8) twins with other tokens, and cut groups, are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable, TokenBatch
from palaestra.errors import ContractError, InvalidData, MissingColumn, RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.systems.agent_rlvr.preference import preference
from palaestra.systems.hicon_agent.loss import dual_branch
from tests.parts.batches import batches, quick

WHOLE = frozenset({"row", "sequence", "invocation", "trajectory", "group"})


def batch(trajectory: list[int], group: list[int], *, whole: frozenset[str] = WHOLE, **columns: Any) -> TokenBatch:
    size = len(trajectory)
    numbers = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    more = {name: numbers.pop(name) for name in ("outcome", "branch", "twin") if name in numbers}
    filled = {name: torch.zeros(size, dtype=torch.float64) for name in ("advantage", "logprob", "proximal")}
    return TokenBatch(
        **{**filled, "weight": torch.ones(size, dtype=torch.float64), **numbers},
        row=torch.arange(size),
        sequence=torch.tensor(trajectory),
        trajectory=torch.tensor(trajectory),
        group=torch.tensor(group),
        whole=whole,
        more=more,
    )


def gradient(loss: Any, given: TokenBatch, **options: Any) -> torch.Tensor:
    leaf = given.logprob.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(given.replace(logprob=leaf), **options)[0].sum(), leaf)
    return found


# ---- pairs ------------------------------------------------------------------------------------------------
def pair(**changes: Any) -> TokenBatch:
    columns: dict[str, Any] = {"logprob": [-5, -7, -11], "reference": [-6, -7, -10.5], "outcome": [1, 1, 0]}
    return batch([0, 0, 1], [0, 0, 0], **{**columns, **changes})


def test_the_gradient_of_a_pair() -> None:  # rule 1
    slope = 0.1 * torch.sigmoid(torch.tensor(-0.15)) * 3  # its three tokens carry the loss each
    assert torch.allclose(gradient(preference, pair()).float(), slope * torch.tensor([-1.0, -1.0, 1.0]))
    metrics = preference(pair())[1]
    assert metrics["preference/accuracy"].tolist() == [1.0] * 3 and metrics["preference/pairs"].tolist() == [1.0] * 3
    assert metrics["preference/margin"].tolist() == pytest.approx([0.15] * 3)


def test_nothing_to_prefer() -> None:  # rule 2
    for outcome in ([1, 1, 1], [0, 0, 0]):
        assert not gradient(preference, pair(outcome=outcome)).any()
    alone = batch([0, 1], [0, 1], logprob=[-1, -1], reference=[-1, -1], outcome=[1, 0])
    assert not gradient(preference, alone).any() and not preference(alone)[0].any()
    masked = pair(weight=[1, 1, 0])
    assert not gradient(preference, masked).any()


def test_bad_pairs() -> None:  # rule 3
    with pytest.raises(InvalidData, match="1 of 3 tokens belong to episodes without an outcome"):
        preference(pair(outcome=[1, 1, float("nan")]))
    with pytest.raises(MissingColumn, match="`reference`"):
        preference(pair().replace(reference=None))
    with pytest.raises(ContractError, match="a part of a group only"):
        preference(pair(whole=WHOLE - {"group"}))
    with pytest.raises(RecipeError, match="cannot take `beta: 0"):
        preference(pair(), beta=0.0)
    columns: dict[str, Any] = {"group": ["g", "g"], "trajectory": ["a", "b"], "agent": ["x", "x"], "turn": [0, 0]}
    with pytest.raises(InvalidData, match="different tasks"):  # a pair would join them
        StepTable(**columns, reward=[1, 0], task=["one", "another"])


# ---- branches ---------------------------------------------------------------------------------------------
@quick
@given(given=batches())
def test_without_twins(given: TokenBatch) -> None:  # rule 4
    options = {"low": 0.1, "high": 0.3}
    assert torch.equal(dual_branch(given, **options)[0], ppo_clip(given, **options)[0])
    assert torch.equal(gradient(dual_branch, given, **options), gradient(ppo_clip, given, **options))


def twins(**changes: Any) -> TokenBatch:
    columns: dict[str, Any] = {
        "logprob": [-1.0, -2.0, -0.5, -3.0, -1.5, -0.4],
        "proximal": [-1.1, -1.9, -0.7, -0.1, -0.2, -0.3],
        "advantage": [1.0, 1.0, -0.5, 1.0, 1.0, -0.5],
        "branch": [0, 0, 0, 1, 1, 1],
        "twin": [0, 0, 1, 0, 0, 1],
    }
    return batch([0, 0, 1, 2, 2, 3], [0] * 6, **{**columns, **changes})


def test_twins_have_the_gradient_of_reinforce() -> None:  # rule 5
    found = gradient(dual_branch, twins(), uncompressed=0.5)
    assert torch.allclose(found[3:], -0.5 * twins().advantage[3:])
    other = gradient(dual_branch, twins(proximal=[-1.1, -1.9, -0.7, -9, -9, -9]), uncompressed=0.5)
    assert torch.equal(found, other)
    assert torch.equal(dual_branch(twins(), uncompressed=0.0, alignment=0.0)[0][:3], ppo_clip(twins())[0][:3])


def test_equal_branches_align() -> None:  # rule 6
    equal = twins(logprob=[-1.0, -2.0, -0.5] * 2, advantage=[0.0] * 6)
    loss, metrics = dual_branch(equal, alignment=1.0)
    assert not loss.any() and not gradient(dual_branch, equal, alignment=1.0).any()
    assert not metrics["policy/branch_kl"].any()
    apart = dual_branch(twins(), alignment=1.0)[1]["policy/branch_kl"]
    assert bool((apart[:3] > 0).all()) and not apart[3:].any()


def test_order_and_cuts() -> None:  # rule 7
    whole = twins(logprob=[-1.0, -2.0, -0.5, -3.0, -1.5, -0.4])
    shuffled = torch.tensor([3, 0, 1, 5, 4, 2])  # a row has one token here
    assert torch.equal(dual_branch(whole.take(shuffled))[0], dual_branch(whole)[0][shuffled])
    assert whole.group is not None
    both = batch(
        [0, 1, 2, 3],
        [0, 0, 1, 1],
        logprob=[-1, -2, -3, -1.0],
        branch=[0, 1, 0, 1],
        twin=[0, 0, 0, 0],
        advantage=[1.0] * 4,
    )
    cut = [dual_branch(both.take(torch.tensor(part)))[0] for part in ([0, 1], [2, 3])]
    assert torch.equal(torch.cat(cut), dual_branch(both)[0])


def test_bad_twins() -> None:  # rule 8
    with pytest.raises(ContractError, match="2 of 2 twins do not have the tokens"):
        dual_branch(twins(twin=[0, 0, 1, 0, 1, 1]))
    with pytest.raises(ContractError, match="a part of a group only"):
        dual_branch(twins(whole=WHOLE - {"group"}))
    with pytest.raises(MissingColumn, match="`branch`"):
        dual_branch(twins().replace(more={}))
    with pytest.raises(RecipeError, match="cannot take `alignment: -1"):
        dual_branch(twins(), alignment=-1.0)
