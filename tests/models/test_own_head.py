"""What must hold of output layers: (1) logits of given hidden states are those of the model's own forward pass, for
architectures that scale, divide or cap them, and for mixtures of experts; (2) a head without such code is called
directly; (3) nothing of the model changes; (4) gradients reach the hidden states and the head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.models.own_head import base_of, is_plain, own_logits

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 8.0},
    "granitemoe": {"logits_scaling": 8.0},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 5.0},
}
PLAIN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "mixtral": {},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "llama4_text": {"intermediate_size_mlp": 48, "head_dim": 8},
}


def model_of(kind: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES, **OWN.get(kind, {}), **PLAIN.get(kind, {}))
        return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind", [*OWN, *PLAIN])
def test_1_2_3_logits_are_those_of_the_models_own_forward(kind: str) -> None:
    model = model_of(kind)
    before, parts = set(model.__dict__), dict(model._modules)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits[0]
        hidden = base_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
        logits = own_logits(model, hidden)
        direct = model.get_output_embeddings()(hidden)
    assert torch.equal(logits, expected)
    assert is_plain(model) == (kind in PLAIN)
    assert torch.equal(direct, expected) == (kind in PLAIN)
    assert set(model.__dict__) == before
    assert model._modules == parts


def test_4_gradients_pass() -> None:
    model = model_of("granite")
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    own_logits(model, hidden).logsumexp(-1).sum().backward()
    weight = model.get_output_embeddings().weight
    assert hidden.grad is not None and weight.grad is not None
    expected = torch.autograd.grad((hidden @ weight.T / 8.0).logsumexp(-1).sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)
