"""What must hold of models: (1) every decoder that calls transformers' attention interface is served, with
grouped keys, sliding windows, soft caps or learned positions; (2) the direct Llama pass and Llama's own modules
agree, and adapters or hooks are never bypassed; (3) what cannot be served is refused by name."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from palaestra.engines import InProcessEngine
from palaestra.engines.forward import TransformersForward
from palaestra.engines.llama import LlamaForward, is_plain_llama
from palaestra.errors import ContractError
from tests.engines.conversations import VOCABULARY, Talker, assert_true_to, lively, small_model
from tests.messages import told

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
LOCAL = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LONG: dict[str, Any] = {"original_max_position_embeddings": 128}
LONG |= {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, **FACTORS}}
CHUNKS = {"attention_chunk_size": 128}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**GROUPED, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
    "llama dynamic": LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "mistral": MistralConfig(**GROUPED, sliding_window=8),
    "phi3 longrope": Phi3Config(**GROUPED | {"pad_token_id": 0}, **LONG),
    "llama4": Llama4TextConfig(**GROUPED, head_dim=8, num_local_experts=2, intermediate_size_mlp=48, **CHUNKS),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "gemma2": Gemma2Config(**GROUPED, **LOCAL, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=5.0),
    "gemma3": Gemma3TextConfig(**GROUPED, **LOCAL, head_dim=8, query_pre_attn_scalar=8),
}


def made(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Soft caps need the plain implementation in the uncached pass that we compare with.
        usual = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
        return lively(AutoModelForCausalLM.from_config(config, attn_implementation=usual), 3.0)


def talk(model: Any) -> list[Talker]:
    engine = InProcessEngine(models={"p": model})
    talkers = [Talker(engine, number) for number in range(5)]

    async def play() -> None:
        await asyncio.gather(*(talker.talk(3, seed=talker.session) for talker in talkers))

    asyncio.run(play())
    return talkers


@pytest.mark.parametrize("name", CONFIGS)
def test_architectures(name):  # rule 1
    model = made(CONFIGS[name])
    assert is_plain_llama(model) == (name == "llama")
    for talker in talk(model):
        assert_true_to(model, talker)


def test_direct_llama_equals_its_own_modules():  # rule 2
    model = small_model()
    direct = talk(model)
    model.register_forward_hook(lambda *_: None)
    assert not is_plain_llama(model)
    own = talk(model)
    for left, right in zip(direct, own, strict=True):
        assert left.ids == right.ids
    assert isinstance(direct[0].engine._servers["p"]._forward, LlamaForward)
    assert isinstance(own[0].engine._servers["p"]._forward, TransformersForward)


def test_adapters_are_not_bypassed():  # rule 2
    class Adapted(torch.nn.Module):
        def __init__(self, inner: torch.nn.Linear) -> None:
            super().__init__()
            self.inner = inner
            self.weight, self.bias = inner.weight, inner.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.inner(x)

    model = small_model()
    model.model.layers[0].mlp.up_proj = Adapted(model.model.layers[0].mlp.up_proj)
    assert not is_plain_llama(model)
    for talker in talk(model):
        assert_true_to(model, talker)


def test_what_cannot_be_served_is_refused():  # rule 3
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(ContractError, match="BloomForCausalLM"):
        InProcessEngine(models={"p": AutoModelForCausalLM.from_config(config)})


@pytest.mark.parametrize("name", ["phi3 longrope", "llama4"])
def test_sessions_end_where_the_model_changes_its_attention(name):  # rule 1
    engine = InProcessEngine(models={"p": made(CONFIGS[name])}, max_length=200)
    assert engine.context("p") == 128


def test_a_layer_whose_attention_is_its_own_is_refused():  # rule 3
    model = made(CONFIGS["mistral"])
    attention = model.model.layers[0].self_attn
    attention.config = copy.copy(attention.config)  # so it does not take the attention that the engine names
    with told(ContractError, "1 of its 2 layers"):
        InProcessEngine(models={"p": model})
