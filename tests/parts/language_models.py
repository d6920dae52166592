"""Tiny language models with attention, and their training step by step, for tests of optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from palaestra.models.causal_lm import make_causal_lm
from palaestra.systems.kimi_rl.attention import AttentionMeter

IDS = torch.arange(24).reshape(3, 8) % 19


def llama(*, layers: int = 2, grow: float = 1.0) -> LlamaForCausalLM:
    model = make_causal_lm(vocabulary=20, hidden=16, layers=layers, heads=2, context=32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(grow)
            layer.self_attn.k_proj.weight.mul_(grow)
    return model


def grouped(grow: float = 1.0) -> LlamaForCausalLM:
    """Four query heads that share two key heads."""
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attention_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for projection in (model.model.layers[0].self_attn.q_proj, model.model.layers[0].self_attn.k_proj):
            projection.weight.mul_(grow)
            projection.bias.normal_()
    return model


def backward(model: nn.Module, ids: Tensor = IDS) -> None:
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def trained(optimizer: Any, model: nn.Module, steps: int) -> list[Tensor]:
    for _ in range(steps):
        optimizer.zero()
        backward(model)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def largest(model: nn.Module, ids: Tensor = IDS) -> list[Tensor]:
    meter = AttentionMeter(model)
    model(input_ids=ids, use_cache=False)
    return [own.clone() for own in meter.largest()]
