"""What must hold of the option `attention`: (1) each kernel gives the same numbers, and only `sdpa` reads packed rows;
(2) a kernel that is not installed, is not known, or does not fit the model is one clear line."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BloomConfig, BloomForCausalLM

from palaestra.data import RunSetup
from palaestra.errors import RecipeError
from palaestra.models.attention import take_kernel
from palaestra.policies.language import LanguagePolicy
from tests.messages import told
from tests.policies.test_packed_batches import samples


def made(attention: str | None, **options: Any) -> LanguagePolicy:
    sizes = {"hidden": 32, "layers": 2, "heads": 2, "context": 128, "vocabulary": 300}
    return LanguagePolicy("p", RunSetup(seed=0, texts=lambda: ["a b"]), **sizes, attention=attention, **options)


def test_1_kernels_agree() -> None:
    plain = made(None)
    assert plain.model.config._attn_implementation == "sdpa"
    expected = plain.forward(samples(None), range(7), ("logprob",))["logprob"]
    for name in ("sdpa", "eager"):
        policy = made(name)
        assert policy.model.config._attn_implementation == name
        torch.testing.assert_close(policy.forward(samples(None), range(7), ("logprob",))["logprob"], expected)
    assert made("sdpa", packing=True).token_cost is not None


def test_2_refused() -> None:
    with told(RecipeError, "cannot read several sequences"):
        made("eager", packing=True)
    with told(RecipeError, "cannot take `fastest`"):
        made("fastest")
    with told(RecipeError, "flash_attention_2"):
        made("flash_attention_2")
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4))
    with told(RecipeError, "one kernel alone"):
        take_kernel(bloom, "sdpa", where="policies.p.policy.language.attention")
