"""Sharding in one process: (1) plain tensors stay as they are; (2) the blocks of a transformer are found, of one inside
another module too; (3) whole weights and optimizer states go into modules that are not spread. Two processes are in
tests/training/test_parallel.py."""

from __future__ import annotations

import copy

import pytest
import torch

from palaestra.models.causal_lm import make_causal_lm
from palaestra.models.sharding import blocks, is_spread, load_optimizer, load_weights, spread_like, whole


def test_1_plain_tensors() -> None:
    tensor = torch.ones(3)
    assert whole(tensor) is tensor and spread_like(tensor, torch.zeros(3)) is tensor and not is_spread(tensor)
    assert spread_like(2.0, tensor) == 2.0


def test_2_blocks() -> None:
    model = make_causal_lm(vocabulary=50, hidden=8, layers=3, heads=2, context=16, seed=0)
    found = list(blocks(torch.nn.ModuleList([model])))
    assert found == list(model.model.layers)
    assert not list(blocks(torch.nn.Linear(2, 2)))


def test_3_whole_states() -> None:
    first, second = (torch.nn.Linear(3, 2) for _ in range(2))
    steps = [torch.optim.AdamW(module.parameters(), lr=0.1) for module in (first, second)]
    first(torch.ones(3)).square().sum().backward()
    steps[0].step()
    load_weights(second, first.state_dict())
    load_optimizer(steps[1], copy.deepcopy(steps[0].state_dict()))
    for module, step in zip((first, second), steps, strict=True):
        step.zero_grad()
        module(torch.ones(3)).sum().backward()
        step.step()
    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)
    with pytest.raises(RuntimeError, match="Missing key"):
        load_weights(second, {})
