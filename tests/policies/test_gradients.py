"""What must hold of gradients, for random trees of prompts and responses: (1) packed rows, padded batches, cut logits
and recomputed layers give that of a plain padded pass of transformers, in float64, for all weights, low-rank additions
and value heads; (2) in bfloat16, packed rows are as near to it as a plain pass in bfloat16."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.data import RunSetup
from palaestra.models.own_head import base_of
from palaestra.models.packing import cost_of_token
from palaestra.models.precision import set_dtype
from palaestra.policies import language_trainer
from palaestra.policies.adapter import LoraSettings
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples, samples_of

WANTED = ("logprob", "entropy", "value")
Sequences = list[tuple[list[int], list[int]]]  # prompts and responses


@st.composite
def trees(draw: st.DrawFn) -> Sequences:
    """Groups of responses to prompts. Some extend an earlier prompt and its response, as a later turn does."""
    ids = st.integers(5, 12)  # few, so that beginnings agree by chance too
    found: Sequences = []
    for _ in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(ids, min_size=1, max_size=12))
        if found and draw(st.booleans()):
            before = draw(st.sampled_from(found))
            prompt = [*before[0], *before[1], *prompt]
        found += [(prompt, draw(st.lists(ids, min_size=1, max_size=8))) for _ in range(draw(st.integers(1, 4)))]
    return found


@functools.cache
def policy(*, lora: bool, recompute: bool, low: bool = False) -> Any:
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "context": 128, "vocabulary": 300}
    options = {"value_head": True, "packing": True, "recompute": recompute}
    added = LoraSettings(rank=3, alpha=5.0) if lora else None
    made = LanguagePolicy("p", RunSetup(seed=0, texts=lambda: ["a b"]), **sizes, **options, lora=added)
    set_dtype(made.module, "bfloat16" if low else "float64")
    trained = made.as_trained()
    trained.module.to(torch.float32 if low and lora else None if low else torch.float64)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (*made.module.parameters(), *trained.module.parameters()):
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=draw))
    return trained


def samples(sequences: Sequences, token_cost: float | None) -> LanguageSamples:
    ids = [np.array([*prompt, *response], np.int32) for prompt, response in sequences]
    places = [np.arange(len(prompt), len(one)) for (prompt, _), one in zip(sequences, ids, strict=True)]
    return samples_of(ids, places, token_cost=token_cost)


def gradient(made: Any, columns: dict[str, Tensor]) -> Tensor:
    """The gradient of a sum in which each token of each output has another weight, and the outputs, as one vector."""
    made.module.zero_grad()
    outputs = torch.cat([columns[name].double() for name in WANTED])
    (outputs * torch.cos(torch.arange(len(outputs)))).sum().backward()
    of_weights = [torch.zeros_like(p) if p.grad is None else p.grad for p in made.module.parameters()]
    return torch.cat([outputs.detach(), *(g.double().flatten() for g in of_weights)])


def plain(made: Any, some: LanguageSamples) -> Tensor:
    """By transformers' own forward pass over sequences that are padded on the right, with a mask."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one).long() for one in some.ids], batch_first=True)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(some.cost)[:, None]).long()
    hidden = base_of(made.model)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    logprobs = made.model.get_output_embeddings()(hidden).float() if made.model.dtype == torch.bfloat16 else None
    logprobs = torch.log_softmax(made.model.lm_head(hidden) if logprobs is None else logprobs, -1)
    rows = np.repeat(np.arange(len(ids)), [len(at) for at in some.places])
    at = np.concatenate(some.places)
    found = logprobs[rows, at - 1]
    value = made.module.value(hidden[rows, at - 1].to(made.module.value.linear.weight.dtype))
    entropy = -(found.exp() * found).sum(-1)
    return gradient(made, {"logprob": found[range(len(at)), ids[rows, at]], "entropy": entropy, "value": value})


@pytest.mark.parametrize("way", ["padded", "packed", "cut", "recomputed"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(sequences=trees())
def test_1_that_of_a_plain_pass(way: str, lora: bool, sequences: Sequences) -> None:
    made = policy(lora=lora, recompute=way == "recomputed")
    some = samples(sequences, None if way == "padded" else cost_of_token(made.network.model))
    with pytest.MonkeyPatch.context() as patch:
        if way == "cut":
            patch.setattr(language_trainer, "CHUNK_LOGITS", 5 * made.model.config.vocab_size)
        found = gradient(made, made.forward(some, range(len(some.ids)), WANTED).columns)
    expected = plain(made, some)
    assert float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(sequences=trees())
def test_2_bfloat16(lora: bool, sequences: Sequences) -> None:
    exact, low = policy(lora=lora, recompute=False), policy(lora=lora, recompute=False, low=True)
    some = samples(sequences, cost_of_token(low.network.model))
    expected = plain(exact, some)
    packed = gradient(low, low.forward(some, range(len(some.ids)), WANTED).columns)
    errors = [float((found - expected).norm() / expected.norm()) for found in (packed, plain(low, some))]
    assert 0 < errors[0] < 0.1
    assert errors[0] <= 1.5 * errors[1] + 0.01
