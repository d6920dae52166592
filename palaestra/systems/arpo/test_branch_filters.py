"""Filters for branches and for entropy.

1.  shared_prefix, soft: the advantage does not change, bit for bit.
2.  shared_prefix: with unclipped ratios and token-mean, soft and hard have the same gradient; with sequence-mean not.
3.  shared_prefix refuses copies of one step that differ in length, and a table without nodes.
4.  entropy_aware without gain, or with equal entropies: the advantage does not change, bit for bit.
5.  entropy_aware never reverses a sign, does not change tokens without entropy, and refuses a negative entropy.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import coefficients
from palaestra.data import StepTable, TokenBatch
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.parts.losses import ppo_clip
from palaestra.registry.options import Aggregation
from palaestra.systems.arpo.entropy_aware import entropy_aware
from palaestra.systems.arpo.shared_prefix import shared_prefix
from tests.messages import told
from tests.parts.tables import quick, tables


def tree() -> StepTable:
    """Three trajectories: 2 branches off from 1 after two steps, and 3 from 2 after three; lengths differ."""
    return StepTable(
        group=["g"] * 11,
        trajectory=["1"] * 3 + ["2"] * 5 + ["3"] * 3,
        agent=["M"] * 11,
        turn=[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2],
        reward=[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0.5],
        node=["a", "b", "c", "a", "b", "d", "e", "f", "a", "b", "d"],
        token_count=[1, 3, 2, 1, 3, 2, 1, 1, 1, 3, 2],
    )


@quick
@given(table=tables())
def test_soft_is_neutral(table: StepTable) -> None:  # rule 1
    advantage = grpo(table)
    assert torch.equal(shared_prefix(table, advantage), advantage)
    per_token = advantage[table.token_row]
    assert torch.equal(shared_prefix(table, per_token), per_token)


def gradient(table: StepTable, advantage: Tensor, how: Aggregation) -> Tensor:
    """The gradient by the logits of the tree's tokens; copies of a step are one token of the model."""
    place = torch.arange(table.tokens) - (table["token_count"].cumsum(0) - table["token_count"])[table.token_row]
    which = table["node"][table.token_row] * 4 + place
    logits = torch.zeros(int(which.max()) + 1, 5, dtype=torch.float64).requires_grad_()
    logprob = torch.log_softmax(logits, -1)[which, 0]
    weight, row = torch.ones(table.tokens), table.token_row
    batch = TokenBatch(
        advantage=advantage.double(), logprob=logprob, logprob_old=logprob.detach(), weight=weight, row=row,
        trajectory=table["trajectory"][row],
    )  # fmt: skip
    (coefficients(batch, how=how) * ppo_clip(batch)[0]).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_soft_and_hard_have_one_gradient() -> None:  # rule 2
    table = tree()
    spread = grpo(table)[table.token_row]
    soft, hard = (shared_prefix(table, spread, mode=mode) for mode in ("soft", "hard"))
    assert not torch.allclose(soft, hard)
    torch.testing.assert_close(
        gradient(table, soft, "token-mean"), gradient(table, hard, "token-mean"), rtol=1e-6, atol=1e-9
    )
    means = gradient(table, soft, "sequence-mean"), gradient(table, hard, "sequence-mean")
    assert float((means[0] - means[1]).abs().max()) > 1e-3
    by_row = [shared_prefix(table, grpo(table), mode="hard")[table.token_row], hard]
    torch.testing.assert_close(*by_row)


def test_shared_prefix_refusals() -> None:  # rule 3
    table = tree()
    with told(InvalidData, "2 tokens, but"):
        shared_prefix(table.replace(token_count=[1, 3, 2, 2, 2, 2, 1, 1, 1, 3, 2]), grpo(table), mode="hard")
    columns = {name: table.labels(name) for name in ("group", "trajectory", "agent")}
    without = StepTable(
        **{k: [v[c] for c in table[k]] for k, v in columns.items()}, turn=table["turn"], reward=[0] * 11
    )
    for mode in ("soft", "hard"):
        with pytest.raises(MissingColumn, match="node"):
            shared_prefix(without, grpo(without), mode=mode)  # type: ignore[arg-type]


@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_no_gain_and_no_difference(table: StepTable, seed: int) -> None:  # rule 4
    advantage = grpo(table)
    entropy = torch.rand(table.tokens, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(
        entropy_aware(table.replace(entropy_old=entropy), advantage, gain=0.0), advantage[table.token_row]
    )
    equal = table.replace(entropy_old=torch.full((table.tokens,), 0.25))
    assert torch.equal(entropy_aware(equal, advantage), advantage[table.token_row])


@quick
@given(table=tables(), gain=st.floats(0, 20), seed=st.integers(0, 10**6))
def test_no_sign_turns(table: StepTable, gain: float, seed: int) -> None:  # rule 5
    advantage = grpo(table)[table.token_row]
    entropy = torch.rand(table.tokens, generator=torch.Generator().manual_seed(seed))
    found = entropy_aware(table.replace(entropy_old=entropy), advantage, gain=gain)
    assert bool((found * advantage >= 0).all())
    entropy[0] = torch.nan
    assert entropy_aware(table.replace(entropy_old=entropy), advantage, gain=gain)[0] == advantage[0]


def test_entropy_refusals() -> None:  # rule 5
    table = tree()
    negative = table.replace(entropy_old=[0.5] * 19 + [-0.25])
    with told(InvalidData, "token 19"):
        entropy_aware(negative, grpo(table))
    with pytest.raises(MissingColumn, match="entropy_old"):
        entropy_aware(table, grpo(table))
    with pytest.raises(RecipeError, match="gain"):
        entropy_aware(negative, grpo(table), gain=-1.0)
