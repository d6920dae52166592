"""The loss of two branches:

1. Without twins it is `ppo_clip` bit for bit, gradient included.
2. The twin's gradient is that of REINFORCE, whatever the old policy.
3. Equal branches have an alignment of 0, in value and gradient.
4. The order of tokens and micro-batches of whole groups change nothing.
5. Twins with other tokens, and groups that are cut, are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import TokenBatch
from palaestra.errors import ContractError, MissingColumn, RecipeError
from palaestra.parts.losses import ppo_clip
from palaestra.systems.hicon_agent.loss import dual_branch
from tests.parts.batches import batch, batches, gradient, quick


@quick
@given(given=batches())
def test_without_twins(given: TokenBatch) -> None:  # rule 1
    options = {"low": 0.1, "high": 0.3}
    assert torch.equal(dual_branch(given, **options)[0], ppo_clip(given, **options)[0])
    assert torch.equal(gradient(dual_branch, given, **options), gradient(ppo_clip, given, **options))


def twins(**changes: Any) -> TokenBatch:
    columns: dict[str, Any] = {
        "logprob": [-1.0, -2.0, -0.5, -3.0, -1.5, -0.4],
        "logprob_old": [-1.1, -1.9, -0.7, -0.1, -0.2, -0.3],
        "advantage": [1.0, 1.0, -0.5, 1.0, 1.0, -0.5],
        "branch": [0, 0, 0, 1, 1, 1],
        "pair": [0, 0, 1, 0, 0, 1],
    }
    return batch([0, 0, 1, 2, 2, 3], [0] * 6, **{**columns, **changes})


def test_twins_have_the_gradient_of_reinforce() -> None:  # rule 2
    found = gradient(dual_branch, twins(), uncompressed=0.5)
    assert torch.allclose(found[3:], -0.5 * twins()["advantage"][3:])
    other = gradient(dual_branch, twins(logprob_old=[-1.1, -1.9, -0.7, -9, -9, -9]), uncompressed=0.5)
    assert torch.equal(found, other)
    assert torch.equal(dual_branch(twins(), uncompressed=0.0, alignment=0.0)[0][:3], ppo_clip(twins())[0][:3])


def test_equal_branches_align() -> None:  # rule 3
    equal = twins(logprob=[-1.0, -2.0, -0.5] * 2, advantage=[0.0] * 6)
    loss, metrics = dual_branch(equal, alignment=1.0)
    assert not loss.any() and not gradient(dual_branch, equal, alignment=1.0).any()
    assert not metrics["policy/branch_kl"].any()
    apart = dual_branch(twins(), alignment=1.0)[1]["policy/branch_kl"]
    assert bool((apart[:3] > 0).all()) and not apart[3:].any()


def test_order_and_cuts() -> None:  # rule 4
    whole = twins(logprob=[-1.0, -2.0, -0.5, -3.0, -1.5, -0.4])
    shuffled = torch.tensor([3, 0, 1, 5, 4, 2])  # a row has one token here
    assert torch.equal(dual_branch(whole.take(shuffled))[0], dual_branch(whole)[0][shuffled])
    assert whole.group is not None
    both = batch(
        [0, 1, 2, 3],
        [0, 0, 1, 1],
        logprob=[-1, -2, -3, -1.0],
        branch=[0, 1, 0, 1],
        pair=[0, 0, 0, 0],
        advantage=[1.0] * 4,
    )
    cut = [dual_branch(both.take(torch.tensor(part)))[0] for part in ([0, 1], [2, 3])]
    assert torch.equal(torch.cat(cut), dual_branch(both)[0])


def test_bad_twins() -> None:  # rule 5
    with pytest.raises(ContractError, match="2 of 2 twins do not have the tokens"):
        dual_branch(twins(pair=[0, 0, 1, 0, 1, 1]))
    with pytest.raises(ContractError, match="only a part of a group"):
        dual_branch(twins(scope="trajectory"))
    with pytest.raises(MissingColumn, match="`branch`"):
        dual_branch(twins().replace(branch=None))
    with pytest.raises(RecipeError, match="cannot take `alignment: -1"):
        dual_branch(twins(), alignment=-1.0)
