"""What must hold of `dtype: bfloat16`: (1) models are in bfloat16, value heads, additions of adapters and buffers are
not; (2) the optimizer changes float32 copies, so steps too small for bfloat16 add up; (3) log-probabilities are in
float32 and near those of float32 weights; (4) a run trains, and a resumed run has the same weights bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from palaestra.data import RunSetup
from palaestra.models.precision import set_dtype
from palaestra.parts.optimizers import AdamW
from palaestra.policies.adapter import AdapterPolicy
from palaestra.registry.bound import BoundPart, bind
from palaestra.store.folder import RunFolder
from palaestra.testing import TinyModel
from palaestra.training.master_weights import MasterWeights
from palaestra.training.policy_gradient import make_optimizer
from tests.policies.test_packed_batches import samples
from tests.training.conftest import stopped_before

LOW = "dtype=bfloat16"


def test_1_what_is_low() -> None:
    base = TinyModel(name="base", value_head=True)
    rotation = base.model.model.rotary_emb.inv_freq.clone()
    set_dtype(base.module, "bfloat16")
    assert {p.dtype for p in base.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in base.module.value.parameters()} == {torch.float32}
    assert torch.equal(base.model.model.rotary_emb.inv_freq, rotation)
    adapter = AdapterPolicy("adapter", RunSetup(seed=1, policies={"base": base}), of="base", value_head=True)
    set_dtype(adapter.module, "bfloat16")
    assert {p.dtype for p in adapter.module.parameters()} == {torch.float32}
    out = adapter.forward(samples(None), [0, 1, 2], ("logprob", "entropy", "value"))
    assert {column.dtype for column in out.columns.values()} == {torch.float32}
    sum(column.sum() for column in out.columns.values()).backward()  # type: ignore[union-attr]
    found = [p.grad for p in adapter.module.parameters() if p.grad is not None]
    assert {g.dtype for g in found} == {torch.float32}
    assert any(bool(g.any()) for g in found)


def test_2_small_steps_add_up() -> None:
    layer = torch.nn.Linear(4, 4).bfloat16()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    adamw = bind("optimizer", BoundPart(name="adamw", options={"lr": 1e-4}))
    optimizer = make_optimizer(adamw, layer)
    assert isinstance(optimizer, MasterWeights)
    assert isinstance(optimizer.inner, AdamW)
    for _ in range(100):
        optimizer.zero()
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert 1.0 - float(layer.weight[0, 0].detach()) == pytest.approx(0.01, abs=0.004)
    other = torch.nn.Linear(4, 4).bfloat16()
    again = make_optimizer(adamw, other)
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    assert again.lr == optimizer.lr


def test_3_near_float32() -> None:
    policy = TinyModel()
    exact = policy.forward(samples(None), range(7), ("logprob",))["logprob"]
    set_dtype(policy.module, "bfloat16")
    low = policy.forward(samples(None), range(7), ("logprob",))["logprob"]
    assert low.dtype == torch.float32
    assert 0 < float((low - exact).detach().abs().max()) < 0.1


def weights(run: Path) -> dict[str, torch.Tensor]:
    place = RunFolder.open(str(run)).latest_checkpoint()
    assert place is not None
    return load_file(place / "main.safetensors")


def test_4_a_run_and_a_resumed_run(echo: Callable[..., Path]) -> None:
    straight = weights(echo("straight", LOW))
    assert {t.dtype for t in straight.values()} == {torch.bfloat16}
    with stopped_before(2):
        echo("stopped", LOW)
    resumed = weights(echo("stopped", LOW, resume=True))
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
