"""Where a run computes: (1) `cpu` and every device that the machine has are taken; (2) a device that it lacks, a number
beyond the last, and a name that is none are refused with what may be named instead; (3) a module says where it is; (4)
a state goes to the CPU whole, and is left as it is if it is there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from palaestra.errors import RecipeError
from palaestra.models.devices import device_of, on_cpu, run_device
from tests.fake_device import FakeDevice


def machine(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """So many CUDA devices, whatever there is."""
    module = SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)


def test_1_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_device("cpu") == torch.device("cpu")
    with FakeDevice() as device:
        assert run_device(device) == torch.device(device)
    machine(monkeypatch, 2)
    assert run_device("cuda") == torch.device("cuda") and run_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("name", "count", "what", "remedy"),
    [
        ("cuda", 0, "has no CUDA device", "Set device=cpu, or install a build of torch for cuda"),
        ("cuda:2", 2, "this machine has 2 such devices, counted from 0", "Set device=cpu"),
        ("gpu", 0, "torch knows no device `gpu`", "Set device=cpu"),
        ("meta", 0, "hold no numbers", "Set device=cpu"),
        ("mps", 1, "no float64", "Set device=cpu"),
    ],
)
def test_2_what_there_is_not(name: str, count: int, what: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, count)
    with pytest.raises(RecipeError) as caught:
        run_device(name)
    assert caught.value.where == f"device: {name}" and what in caught.value.what
    assert caught.value.remedy.startswith(remedy) and "cpu" in caught.value.options
    assert ("cuda" in caught.value.options) is (count > 0)


def test_2_a_device_without_a_build() -> None:
    with pytest.raises(RecipeError, match="has no privateuseone device"):
        run_device("privateuseone")


def test_3_a_module_says_where_it_is() -> None:
    layer = nn.Linear(2, 2)
    assert device_of(layer) == torch.device("cpu") == device_of(nn.Tanh())
    with FakeDevice() as device:
        assert device_of(layer.to(device)).type == torch.device(device).type


def test_4_a_state_on_the_cpu() -> None:
    state: dict[str, Any] = {"a": torch.ones(2), "b": [torch.zeros(1), (1, "x")], "c": {}}
    assert on_cpu(state) is state
    with FakeDevice() as device:
        state["b"][0] = torch.full((1,), 5.0, device=device)
        moved = on_cpu(state)
    assert moved["a"] is state["a"] and moved["b"][0].device.type == "cpu" and moved["b"][0].item() == 5.0
    assert moved["b"][1] is state["b"][1] and type(moved["b"]) is list
