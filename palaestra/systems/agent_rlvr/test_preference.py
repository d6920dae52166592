"""The loss over pairs:

1. The gradient raises the better episode and lowers the worse one by the amount of the formula.
2. Equal outcomes and single episodes have no gradient.
3. Episodes without an outcome, batches without a reference, parts of a group and groups of several tasks are refused.
4. An episode that a limit cut off unjudged has the outcome 0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.data import StepTable, TokenBatch
from palaestra.errors import ContractError, InvalidData, MissingColumn, RecipeError
from palaestra.systems.agent_rlvr.preference import preference
from tests.messages import told
from tests.parts.batches import batch, gradient


def pair(**changes: Any) -> TokenBatch:
    columns: dict[str, Any] = {"logprob": [-5, -7, -11], "logprob_reference": [-6, -7, -10.5], "outcome": [1, 1, 0]}
    return batch([0, 0, 1], [0, 0, 0], **{**columns, **changes})


def test_the_gradient_of_a_pair() -> None:  # rule 1
    slope = 0.1 * torch.sigmoid(torch.tensor(-0.15)) * 3  # each of the three tokens carries the loss
    assert torch.allclose(gradient(preference, pair()).float(), slope * torch.tensor([-1.0, -1.0, 1.0]))
    metrics = preference(pair())[1]
    assert metrics["preference/accuracy"].tolist() == [1.0] * 3 and metrics["preference/pairs"].tolist() == [1.0] * 3
    assert metrics["preference/margin"].tolist() == pytest.approx([0.15] * 3)


def test_nothing_to_prefer() -> None:  # rule 2
    for outcome in ([1, 1, 1], [0, 0, 0]):
        assert not gradient(preference, pair(outcome=outcome)).any()
    alone = batch([0, 1], [0, 1], logprob=[-1, -1], logprob_reference=[-1, -1], outcome=[1, 0])
    assert not gradient(preference, alone).any() and not preference(alone)[0].any()
    masked = pair(weight=[1, 1, 0])
    assert not gradient(preference, masked).any()


def test_bad_pairs() -> None:  # rule 3
    with told(InvalidData, "1 of 3"):
        preference(pair(outcome=[1, 1, float("nan")]))
    with pytest.raises(MissingColumn, match="`logprob_reference`"):
        preference(pair().replace(logprob_reference=None))
    with told(ContractError, "part of a group"):
        preference(pair(scope="trajectory"))
    with pytest.raises(RecipeError, match="cannot take `beta: 0"):
        preference(pair(), beta=0.0)
    columns: dict[str, Any] = {"group": ["g", "g"], "trajectory": ["a", "b"], "agent": ["x", "x"], "turn": [0, 0]}
    with pytest.raises(InvalidData, match="different tasks"):  # a pair would join them
        StepTable(**columns, reward=[1, 0], task=["one", "another"])


def test_episodes_that_were_cut_off() -> None:  # rule 4
    cut = pair(outcome=[1, 1, float("nan")], truncated=[0, 0, 1])
    assert torch.equal(gradient(preference, cut), gradient(preference, pair()))
    with pytest.raises(InvalidData, match="1 of 3"):
        preference(pair(outcome=[1, 1, float("nan")], truncated=[1, 0, 0]))
