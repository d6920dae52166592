"""The direct forward pass of Llama: (1) `join_weights` makes weights of layers that read the same input views of one
tensor, which changes no number, name or file of the model; (2) after `publish`, weights that changed or were replaced
are read again; (3) copies that share the weights go on sharing them, and several engines serve them; (4) biases, and
low-rank additions of some of the layers, with and without joined weights; (5) packed weights in bfloat16 change no
token and no bit of its log-probability, also after `publish`, and `sleep` frees them.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from palaestra.engines import InProcessEngine, llama
from palaestra.models import joined, products
from palaestra.models.adapters import Addition, adapt, sharing
from palaestra.models.products import packs
from tests.engines.conversations import Talker, assert_true_to, lively, small_model

QUERIES = "model.layers.0.self_attn.q_proj"


def check(model: Any, *engines: InProcessEngine, version: int = 0) -> None:
    """The numbers of all engines are those of the model."""
    for engine in engines:
        engine.publish("p", (), version)
        talkers = [Talker(engine, (version, number)) for number in range(4)]

        async def play(talkers: list[Talker] = talkers) -> None:
            await asyncio.gather(*(talker.talk(2, seed=number) for number, talker in enumerate(talkers)))

        asyncio.run(play())
        for talker in talkers:
            assert_true_to(model, talker)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join the weights of small models, too."""
    monkeypatch.setattr(joined, "is_large", lambda _: True)


def places(model: Any) -> set[int]:
    """The memory of queries, keys and values of the first layer."""
    attention = model.model.layers[0].self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return {part.weight.untyped_storage().data_ptr() for part in parts}


def test_1_views(tmp_path: Path) -> None:
    model = small_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(places(model)) == 3
    joined.join_weights(model)
    engine = InProcessEngine(models={"p": model})
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert len(places(model)) == 1
    check(model, engine)

    model.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(read[name], before[name]) for name in before)
    copied = copy.deepcopy(model)
    copied.get_submodule(QUERIES).weight.data.zero_()
    assert torch.equal(model.state_dict()[f"{QUERIES}.weight"], before[f"{QUERIES}.weight"])


def test_2_new_weights() -> None:
    model = small_model()
    joined.join_weights(model)
    engine = InProcessEngine(models={"p": model})
    check(model, engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
    optimizer.step()
    check(model, engine, version=1)
    model.load_state_dict(small_model(seed=1).state_dict())
    check(model, engine, version=2)
    part = model.get_submodule(QUERIES)
    part.weight.data = torch.randn_like(part.weight)
    check(model, engine, version=3)
    part.weight = nn.Parameter(torch.randn_like(part.weight))
    check(model, engine, version=4)
    assert len(places(model)) == 2  # it no longer lies beside the others
    joined.join_weights(model)
    check(model, engine, version=5)
    assert len(places(model)) == 1


def test_3_copies_share_the_weights() -> None:
    model = small_model()
    joined.join_weights(model)
    copied = sharing(model)
    assert places(copied) == places(model) and len(places(model)) == 1
    engines = [InProcessEngine(models={"p": one}) for one in (model, copied, model)]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    check(model, *engines, version=1)
    check(copied, *engines, version=2)
    assert places(copied) == places(model)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("adapted", [(), ("k_proj",), ("q_proj", "v_proj", "up_proj"), ("gate_proj", "down_proj")])
def test_4_biases_and_additions(adapted: tuple[str, ...], join: bool) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97}
        model = lively(AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads)))
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(weight)
        if join:
            joined.join_weights(model)
        layers = {place: part for place, part in model.named_modules() if place.rpartition(".")[2] in adapted}
        for rank, (place, part) in enumerate(layers.items(), start=2):
            a, b = nn.Linear(part.in_features, rank, bias=False), nn.Linear(rank, part.out_features, bias=False)
            adapt(model, {place: Addition(a, b, 0.7)})
    engine = InProcessEngine(models={"p": model})
    check(model, engine)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora" in name:
                weight.mul_(1.5)
    check(model, engine, version=1)


@pytest.mark.parametrize("trained", [False, True])
def test_5_packed_weights(monkeypatch: pytest.MonkeyPatch, trained: bool) -> None:
    model = small_model().bfloat16().requires_grad_(trained)
    joined.join_weights(model)
    if not packs(model.lm_head.weight):
        pytest.skip("this processor has no products in bfloat16")
    engines = []
    for packed in (False, True):
        monkeypatch.setattr(llama, "is_large", lambda _, packed=packed: packed)
        engines.append(InProcessEngine(models={"p": model}))
    for version in range(2):
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(1 + version)
        said = []
        for engine in engines:
            engine.publish("p", (), version)
            talker = Talker(engine, version)
            asyncio.run(talker.talk(3, seed=version))
            said.append([turn.answer for turn in talker.turns])
        assert bool(products._packed) is not trained
        engines[1].sleep()
        assert not products._packed
        for plain, quick in zip(*said, strict=True):
            assert plain.action.tokens.tolist() == quick.action.tokens.tolist()
            assert plain.action.logprobs.tolist() == quick.action.logprobs.tolist()
