"""The squared objective:

1. Value and gradient are those of the definition.
2. Where the policy is the old one, the gradient is 2 · temperature times that of a policy gradient with a mean
   baseline.
3. With an advantage of 0 it pulls back to the old policy.
4. How a trajectory is cut into tokens and rows changes nothing.
5. Batches that cut trajectories and bad temperatures are refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from palaestra.algebra import aggregate
from palaestra.data import StepTable, TokenBatch
from palaestra.errors import ContractError, RecipeError
from palaestra.parts.estimators import dr_grpo
from palaestra.parts.losses import reinforce
from palaestra.systems.kimi_rl.squared_objective import squared_objective
from tests.parts.batches import batches, quick


def batch_of(logprob: Tensor, advantage: list[float], trajectory: list[int]) -> TokenBatch:
    codes = torch.tensor(trajectory)
    return TokenBatch(
        advantage=torch.tensor(advantage, dtype=torch.float64),
        logprob=logprob,
        logprob_old=torch.zeros(len(codes), dtype=torch.float64),
        weight=torch.ones(len(codes), dtype=torch.float64),
        row=torch.arange(len(codes)),
        trajectory=codes,
        scope="trajectory",
    )


def test_value_and_gradient() -> None:  # rule 1
    table = StepTable(group=["g"] * 4, trajectory=[*"abcd"], agent=["x"] * 4, turn=[0] * 4, reward=[1, 0, 0, 1])
    advantage = dr_grpo(table).tolist()
    logprob = torch.tensor([0.2, -0.1, 0.0, 0.3], dtype=torch.float64, requires_grad=True)
    batch = batch_of(logprob, advantage, [0, 1, 2, 3])
    loss = aggregate(squared_objective(batch, temperature=0.5)[0], batch, how="sequence-sum")
    assert loss.item() == pytest.approx(0.1838, abs=6e-5)
    loss.backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-0.1, 0.1125, 0.125, -0.0875])


@quick
@given(batches(on_policy=True))
def test_policy_gradient(batch: TokenBatch) -> None:  # rule 2
    level = torch.zeros(4, dtype=torch.float64).index_copy(
        0, torch.arange(4), torch.tensor([1.0, -0.5, 0.25, 2.0]).double()
    )
    batch = batch.replace(advantage=level[batch.trajectory], weight=(batch["weight"] > 0).double())

    def gradient(loss: object, **options: float) -> Tensor:
        logprob = batch["logprob"].clone().requires_grad_()
        here = batch.replace(logprob=logprob)
        aggregate(loss(here, **options)[0], here, how="sequence-sum").backward()  # type: ignore[operator]
        assert logprob.grad is not None
        return logprob.grad

    torch.testing.assert_close(gradient(squared_objective, temperature=0.3), 2 * 0.3 * gradient(reinforce))


def test_pull() -> None:  # rule 3
    logprob = torch.tensor([0.4, -0.4], dtype=torch.float64, requires_grad=True)
    squared_objective(batch_of(logprob, [0.0, 0.0], [0, 1]))[0].sum().backward()
    assert logprob.grad is not None and logprob.grad[0] > 0 > logprob.grad[1]


def test_tokens_of_a_trajectory() -> None:  # rule 4
    one = batch_of(torch.tensor([0.6, -0.2], dtype=torch.float64), [1.0, -1.0], [0, 1])
    cut = batch_of(torch.tensor([0.1, -0.2, 0.2, 0.3], dtype=torch.float64), [1.0, -1.0, 1.0, 1.0], [0, 1, 0, 0])
    totals = [aggregate(squared_objective(b)[0], b, how="sequence-sum") for b in (one, cut)]
    torch.testing.assert_close(totals[0], totals[1])
    masked = cut.replace(weight=torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    log_ratio = squared_objective(masked)[1]["policy/log_ratio"]
    assert log_ratio[0].item() == pytest.approx(0.3)


def test_refusals() -> None:  # rule 5
    batch = batch_of(torch.zeros(2, dtype=torch.float64), [1.0, -1.0], [0, 1])
    with pytest.raises(ContractError, match="loss: squared_objective"):
        squared_objective(batch.replace(scope="row"))
    with pytest.raises(RecipeError, match="temperature"):
        squared_objective(batch, temperature=0.0)
