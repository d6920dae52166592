"""What must hold of families of decoders in transformers, each made small with random weights: (1) those listed as
served give the numbers of an uncached pass, for a long and a short session together and for turns that follow; (2)
those listed as refused are refused by name with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError
from tests.engines.conversations import VOCABULARY, Talker, assert_true_to, lively

# Each family takes those that its configuration has.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SERVED = (
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "biogpt",
    "bitnet",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cwm",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
)
# Their attention does not pass through transformers' interface, reads both directions, or keeps a state of its own.
REFUSED = ("bart", "bert", "blenderbot", "bloom", "camembert", "codegen", "diffllama", "doge", "electra")


def made(kind: str) -> Any:
    blank = AutoConfig.for_model(kind)
    config = AutoConfig.for_model(kind, **{name: value for name, value in SIZES.items() if hasattr(blank, name)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lively(AutoModelForCausalLM.from_config(config), 3.0)


@pytest.mark.parametrize("kind", SERVED)
def test_1_served(kind: str) -> None:
    model = made(kind)
    engine = InProcessEngine(models={"p": model})
    random = np.random.default_rng(0)
    long, short = Talker(engine, "long"), Talker(engine, "short")

    def prompt(count: int) -> np.ndarray:
        return random.integers(3, VOCABULARY, count).astype(np.int32)

    async def play() -> None:
        await asyncio.gather(long.say(prompt(150), seed=1, max_tokens=6), short.say(prompt(5), seed=2, max_tokens=6))
        await asyncio.gather(long.say(prompt(20), seed=3, max_tokens=3), short.say(prompt(70), seed=4, max_tokens=3))

    asyncio.run(play())
    assert_true_to(model, long)
    assert_true_to(model, short)


@pytest.mark.parametrize("kind", REFUSED)
def test_2_refused(kind: str) -> None:
    model = made(kind)
    why = "(its forward pass failed|its cached and its uncached log-probabilities differ)"
    with pytest.raises(ContractError, match=rf"(?s){type(model).__name__}.*cannot be served: {why}"):
        InProcessEngine(models={"p": model})
