"""What must hold of packed batches: (1) log-probabilities, entropies, values and gradients are those of padded
batches, in the order of the samples; (2) samples that begin alike are in one micro-batch, and the budget counts what is
computed; (3) a small model, and one whose attention is measured, gets padded batches; (4) a run with a large model
whose batches are padded says so once, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.data.batches import micro_batches_of
from palaestra.models.packing import cost_of_token, enable
from palaestra.policies.sequences import LanguageSamples, samples_of
from palaestra.recipe import load
from palaestra.testing import TinyModel
from palaestra.training.start import train
from tests.training.conftest import ECHO

WANTED = ("logprob", "entropy", "value", "bootstrap_value")


def samples(token_cost: float | None) -> LanguageSamples:
    """Two groups of answers to a prompt; one answer is also the beginning of a longer one. One sample was cut off."""
    draw = np.random.default_rng(1)
    prompts = [draw.integers(5, 200, count).astype(np.int32) for count in (12, 7)]
    answers = [draw.integers(5, 200, count).astype(np.int32) for count in (3, 5, 2, 4, 1, 6)]
    ids = [np.concatenate([prompts[i % 2], answer]) for i, answer in enumerate(answers)]
    ids.append(np.concatenate([ids[1], answers[0]]))
    places = [np.arange(len(prompts[i % 2]), len(one)) for i, one in enumerate(ids)]
    places[6] = np.arange(7, 12)  # its last ids are a prompt, whose value is read
    ends = [-1] * 6 + [len(ids[6]) - 1]
    return samples_of(ids, places, ends=ends, temperature=0.7, token_cost=token_cost)


@pytest.fixture
def policy() -> TinyModel:
    made = TinyModel(value_head=True)
    made.module.double()
    assert not enable(made.model)
    return made


def test_1_numbers_are_those_of_padded_batches(policy: TinyModel) -> None:
    found = []
    for cost in (None, cost_of_token(policy.model)):
        policy.module.zero_grad()
        out = policy.forward(samples(cost), [6, 0, 3, 1, 5, 2, 4], WANTED)
        weight = torch.linspace(-1, 1, len(out["logprob"]), dtype=torch.float64)
        sum((weight * out[name]).sum() for name in WANTED[:3]).backward()  # type: ignore[union-attr]
        gradients = [p.grad.clone() for p in policy.module.parameters() if p.grad is not None]
        assert out.bootstrap_value is not None
        found.append([*(out[name] for name in WANTED[:3]), out.bootstrap_value, *gradients])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, atol=1e-6, rtol=1e-5, equal_nan=True)


def test_2_micro_batches() -> None:
    some = samples(1e4)
    assert some.beginnings is not None
    assert some.beginnings.size([0, 2, 4]) == 12 + 3 + 2 + 1
    assert some.beginnings.size([1, 6]) == len(some.ids[6])
    cuts = micro_batches_of(some, range(7), budget=30)
    assert sorted(i for cut in cuts for i in cut) == list(range(7))
    assert sorted(sorted(cut) for cut in cuts) == [[0, 2, 4], [1, 3, 5, 6]]
    assert all(len(some.batch(cut).ids[0]) <= 30 for cut in cuts)
    padded = micro_batches_of(samples(None), range(7), budget=30)
    assert len(padded) > len(cuts)


def test_3_padded_where_packing_is_off(policy: TinyModel) -> None:
    assert TinyModel().collate([], temperature=1.0).token_cost is None
    assert policy.collate([], temperature=1.0).token_cost is not None
    policy.model.config._attn_implementation = "sdpa"
    assert policy.collate([], temperature=1.0).token_cost is None


@pytest.mark.parametrize("lora", [{}, {"lora": {"rank": 2}}], ids=["whole", "lora"])
def test_4_padding_is_said_once(
    lora: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("palaestra.policies.language.is_large", lambda model: True)
    said = "policy main: samples are padded, which is slower. LlamaForCausalLM cannot read several sequences in one row"
    small = {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300, **lora}
    for attention, times in (("eager", 1), (None, 0)):
        policies = {"policies": {"main": {"policy": {"language": small | {"attention": attention}}}}}
        changes = [f"run={tmp_path / str(attention)}", "warm_start=null", "evaluation.tasks=2", "training.iterations=1"]
        recipe = load([ECHO, policies], changes)
        train(recipe.settings, recipe=recipe.to_json())
        shown = capsys.readouterr()
        assert (shown.out + shown.err).count(said) == times, attention
