"""AdamW: (1) the rate warms up and decays as told; (2) the gradient's norm is bounded and reported as it was; (3) a
gradient that is not finite moves nothing and is counted; (4) a saved state goes on bit for bit; (5) decay spares
vectors; (6) options that do not fit are refused, and so is the state of another model.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from palaestra.errors import CheckpointError, RecipeError
from palaestra.parts.optimizers import AdamW
from tests.messages import told


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def train(optimizer: AdamW, body: torch.nn.Module, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        optimizer.zero()
        body(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()


def rates(steps: int, **options: Any) -> list[float]:
    body = model()
    optimizer = AdamW(body.parameters(), lr=1.0, **options)
    found = []
    for step in range(steps):
        found.append(round(optimizer.lr, 4))
        train(optimizer, body, 1, step)
    return found


def test_rates() -> None:  # rule 1
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(5, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(6, warmup=2, decay="linear", total_steps=6) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = [round((1 + math.cos(math.pi * k / 4)) / 2, 4) for k in range(4)]
    assert rates(6, decay="cosine", total_steps=4) == [*cosine, 0.0, 0.0]


def test_norm() -> None:  # rule 2
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = AdamW([parameter], lr=0.1, clip=1.0, eps=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert optimizer.step() == pytest.approx(5.0)
    # The step is lr · g / (|g| + eps) with g = (.6, .8) after clipping; large eps shows the size.
    torch.testing.assert_close(parameter.detach(), -0.1 * torch.tensor([0.6 / 1.6, 0.8 / 1.8]), atol=1e-6, rtol=1e-5)


def test_gradient_that_is_not_finite() -> None:  # rule 3
    parameter = torch.ones(2, requires_grad=True)
    optimizer = AdamW([parameter], lr=0.1, warmup=2)
    parameter.grad = torch.tensor([1.0, torch.nan])
    assert math.isnan(optimizer.step())
    assert parameter.tolist() == [1.0, 1.0] and optimizer.skipped == 1 and optimizer.lr == 0.05
    parameter.grad = torch.tensor([1.0, 1.0])
    assert math.isfinite(optimizer.step()) and parameter[0] < 1


def test_resume_is_exact() -> None:  # rule 4
    options: dict[str, Any] = {"lr": 0.01, "warmup": 3, "decay": "cosine", "total_steps": 10, "weight_decay": 0.1}
    whole, part = model(), model()
    train(AdamW(whole.parameters(), **options), whole, 6)
    first = AdamW(part.parameters(), **options)
    train(first, part, 3)
    second = AdamW(part.parameters(), **options)
    second.load_state_dict(first.state_dict())
    train(second, part, 3, first=3)
    for one, other in zip(whole.parameters(), part.parameters(), strict=True):
        assert torch.equal(one, other)


def test_decay_spares_vectors() -> None:  # rule 5
    body = model()
    bias, weight = body.bias.detach().clone(), body.weight.detach().clone()
    optimizer = AdamW(body.parameters(), lr=0.1, weight_decay=0.5)
    for parameter in body.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(body.bias.detach(), bias)
    torch.testing.assert_close(body.weight.detach(), 0.95 * weight)


def test_nothing_to_do() -> None:
    body = model()
    optimizer = AdamW(body.parameters(), lr=0.1)
    assert optimizer.step() == 0.0


@pytest.mark.parametrize(
    "options", [{"lr": 0.0}, {"lr": 1.0, "betas": (0.9, 1.0)}, {"lr": 1.0, "clip": -1.0}, {"lr": 1.0, "warmpu": 3}, {}]
)
def test_options_out_of_range(options: dict[str, Any]) -> None:  # rule 6
    with pytest.raises((RecipeError, TypeError)):
        AdamW(model().parameters(), **options)


def test_decay_needs_an_end() -> None:  # rule 6
    with told(RecipeError, "decay: cosine"):
        AdamW(model().parameters(), lr=1.0, decay="cosine")
    with told(RecipeError, "`warmup`"):
        AdamW(model().parameters(), lr=1.0, decay="linear", warmup=5, total_steps=5)


def test_state_of_another_model() -> None:  # rule 6
    body = model()
    optimizer = AdamW(body.parameters(), lr=0.1)
    train(optimizer, body, 1)
    for other in (torch.nn.Linear(4, 2), torch.nn.Linear(3, 2, bias=False)):
        with told(CheckpointError, "parameters"):
            AdamW(other.parameters(), lr=0.1).load_state_dict(optimizer.state_dict())
