"""What must hold of packed rows: (1) hidden states and gradients are those of each sequence alone, also with sliding
windows, capped logits and grouped keys, whether a tree is one block or many; (2) equal beginnings are in the row once,
but not where that costs more than it saves; (3) a model that reads packed rows reads ordinary batches as before;
(4) a model whose numbers would change is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from palaestra.models import packing
from palaestra.models.causal_lm import load_causal_lm
from palaestra.models.own_head import base_of
from palaestra.models.packing import PackedRow, enable, is_enabled, read_packed

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "mistral": MistralConfig(**GROUPED, sliding_window=4),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gemma2": Gemma2Config(**GROUPED, **LOCAL, query_pre_attn_scalar=8, attn_logit_softcapping=5.0),
    "gemma3": Gemma3TextConfig(**GROUPED, **LOCAL, query_pre_attn_scalar=8),
}


def made(config: Any) -> Any:
    usual = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=usual).eval().double()
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return model


def tree() -> list[np.ndarray]:
    """Sequences that share beginnings: a group of answers, branches of a branch, one inside another, and equal ones."""
    fresh = iter(np.random.default_rng(0).permutation(64).tolist())

    def some(count: int) -> list[int]:
        return [next(fresh) for _ in range(count)]

    prompt, branch = some(9), some(5)
    lists = [prompt + some(3), prompt + some(6), prompt + branch + some(2), prompt + branch + some(7), prompt + branch]
    lists += [some(4), lists[2], some(11)]
    return [np.array(one, np.int32) for one in lists]


def alone(model: Any, ids: list[np.ndarray]) -> list[torch.Tensor]:
    base = base_of(model)
    return [base(input_ids=torch.from_numpy(i)[None].long(), use_cache=False).last_hidden_state[0] for i in ids]


def gradients(model: Any, hidden: list[torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    sum((states * torch.cos(torch.arange(states.numel()).view(states.shape))).sum() for states in hidden).backward()  # type: ignore[union-attr]
    return [p.grad.clone() for p in base_of(model).parameters() if p.grad is not None]


@pytest.mark.parametrize("call", [0, 10**6], ids=["many blocks", "one block"])
@pytest.mark.parametrize("name", CONFIGS)
def test_1_each_sequence_alone(name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CALL", call)
    model, ids = made(CONFIGS[name]), tree()
    expected = alone(model, ids)
    of_expected = gradients(model, expected)
    assert not enable(model)
    row = PackedRow(ids, token=1e6)
    assert len(row.sizes) == (3 if call else 8)
    states = read_packed(model, row)
    hidden = [states[torch.from_numpy(places)] for places in row.places]
    of_hidden = gradients(model, hidden)
    for left, right in zip(hidden, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-6)
    for left, right in zip(of_hidden, of_expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)  # norms are computed in float32


def test_2_sharing_is_chosen_by_cost() -> None:
    ids = tree()
    row = PackedRow(ids, token=1e6)
    assert len(row) == 9 + 3 + 6 + 5 + 2 + 7 + 4 + 11
    for one, places in zip(ids, row.places, strict=True):
        assert np.array_equal(row.ids[places], one)
        assert np.array_equal(row.positions[places], np.arange(len(one)))
    long = [np.r_[7, np.full(3000, i)].astype(np.int32) for i in (1, 2)]
    assert len(PackedRow(long, token=10.0)) == 2 * 3001
    assert len(PackedRow(long, token=1e9)) == 2 * 3000 + 1


@pytest.mark.parametrize("name", CONFIGS)
def test_3_ordinary_batches_are_as_before(name: str) -> None:
    model = made(CONFIGS[name]).float()
    ids = torch.arange(24).view(2, 12)
    mask = torch.ones_like(ids).index_fill_(1, torch.arange(3), 0)
    with torch.no_grad():
        before = model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits
        assert not enable(model)
        after = model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits
    for left, right, seen in zip(before, after, (torch.ones_like(mask), mask), strict=True):
        torch.testing.assert_close(left[seen > 0], right[seen > 0], atol=1e-4, rtol=1e-4)


def test_4_others_are_left_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bloom = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))
    before = bloom.config._attn_implementation
    assert "`eager`" in enable(bloom)
    assert bloom.config._attn_implementation == before
    assert not is_enabled(bloom)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_1_a_pretrained_model_of_any_precision(smollm2: str, dtype: torch.dtype) -> None:
    model = load_causal_lm(smollm2, dtype=dtype)
    assert not enable(model) and is_enabled(model)
