"""What must hold of FakeDevice: (1) a tensor on it computes what it computes on the CPU, with its gradients, and a
module keeps its tied weights there; (2) an operation on tensors of both devices is refused, forward and in an
optimizer, but for scalars and indices; (3) neither numpy nor a file gets a tensor from it; (4) a GRU gives no gradient
in evaluation mode, as cuDNN; (5) afterwards torch is as it was.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.fake_device import FakeDevice

ROWS = torch.arange(12.0).view(4, 3)


@pytest.fixture
def device() -> Iterator[str]:
    with FakeDevice() as entered:
        yield entered


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def learned(device: str) -> list[torch.Tensor]:
    """Weights after two steps."""
    module = layers().to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        module(ROWS.to(device)).square().mean().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(list(module.parameters()), 0.1, norm)
        optimizer.step()
    return [weight.cpu() for weight in module.state_dict().values()]


def test_1_numbers(device: str) -> None:
    assert all(torch.equal(one, other) for one, other in zip(learned("cpu"), learned(device), strict=True))
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    x[1:] += torch.arange(2, device=device)
    assert x.device.type == device and x.tolist() == [1.0, 2.0, 4.0] and x.sum().item() == 7.0 and bool((x > 3).any())
    assert x.to("cpu", torch.float64).dtype == torch.float64 and x.to(torch.float64).device == x.device
    assert ROWS.to(x).device == x.device and x.new_zeros(2).device == x.device
    assert torch.zeros_like(x).device == x.device and torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert nn.functional.one_hot(torch.tensor([1], device=device), 3).tolist() == [[0, 1, 0]]


def test_1_gradients_cross(device: str) -> None:
    x = ROWS.clone().requires_grad_()
    (x.to(device).square().sum(0).cpu() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    torch.testing.assert_close(x.grad, 2 * ROWS * torch.tensor([1.0, 2.0, 3.0]))


def test_1_a_gradient_that_nothing_came_back_to(device: str) -> None:
    x = torch.zeros(3, device=device, requires_grad=True)
    one, other = x.split([1, 2])
    nn.functional.softplus(one).index_select(0, torch.zeros(0, dtype=torch.int64, device=device)).sum().backward()
    assert x.grad is not None and x.grad.device == x.device and x.grad.tolist() == [0.0, 0.0, 0.0]
    assert other.device == x.device


def test_1_modules(device: str) -> None:
    module = nn.ModuleDict({"a": nn.Embedding(5, 3), "b": nn.Linear(3, 5)})
    module["b"].weight = module["a"].weight
    module.to(device)
    assert module["a"].weight is module["b"].weight and isinstance(module["a"].weight, nn.Parameter)
    copied: Any = copy.deepcopy(module)
    assert copied["a"].weight is copied["b"].weight is not module["a"].weight
    assert isinstance(copied["a"].weight, nn.Parameter) and copied["a"].weight.requires_grad
    copied.load_state_dict({**module.state_dict(), "a.weight": torch.zeros(5, 3), "b.weight": torch.zeros(5, 3)})
    assert copied["b"](torch.ones(1, 3, device=device)).abs().sum().item() > 0.0  # its bias
    assert copied["b"].weight.tolist() == [[0.0] * 3] * 5


def test_2_mixed(device: str) -> None:
    module, both = layers().to(device), "at least two devices"
    with pytest.raises(RuntimeError, match=both):
        module(ROWS)
    x = ROWS.to(device)
    for mixes in (lambda: x + ROWS, lambda: torch.cat([x, ROWS]), lambda: x.index_copy_(0, torch.arange(4), x)):
        with pytest.raises(RuntimeError, match=both):
            mixes()
    assert (x * torch.tensor(2.0))[torch.tensor([0, 1])].sum().item() == 30.0
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    module(x).sum().backward()
    optimizer.step()
    optimizer.state[module[0].weight]["exp_avg"] = torch.zeros(4, 3)
    with pytest.raises(RuntimeError):
        optimizer.step()


def test_3_nothing_gets_out(device: str) -> None:
    x = ROWS.to(device)
    for reads in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="to numpy"):
            reads()
    with pytest.raises(TypeError, match="bring it to the CPU first"):
        torch.save({"x": x}, io.BytesIO())


def test_4_memory(device: str) -> None:
    memory = nn.GRU(3, 2, batch_first=True).to(device)
    memory(ROWS[None].to(device))[0].sum().backward()
    with pytest.raises(RuntimeError, match="training mode"):
        memory.eval()(ROWS[None].to(device))[0].sum().backward()


def test_5_left_behind() -> None:
    before = (torch.zeros, torch.Tensor.to)
    with FakeDevice() as device, pytest.raises(ZeroDivisionError):
        assert torch.zeros(1, device=device).device.type == device
        raise ZeroDivisionError
    assert (torch.zeros, torch.Tensor.to) == before and not hasattr(torch, device)
