"""A language policy's critic: (1) by default the value loss moves the model; (2) with `critic_gradient: false` it has
no gradient in it, and one in the value head, also through the value after a cut; (3) log-probabilities are the same
either way; (4) layers of the value head come from the seed, begin with values of 0 and belong to the architecture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from palaestra.data import RunSetup
from palaestra.models.heads import ValueHead
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples

SIZES: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "context": 32, "vocabulary": 300}
SETUP = RunSetup(seed=3, vector_size=None, action_count=None, texts=lambda: ["walk slowly north", "turn around"])


def policy(**options: Any) -> LanguagePolicy:
    """A tiny one, whose values depend on the hidden states."""
    made = LanguagePolicy("main", SETUP, value_head=True, **SIZES, **options)
    torch.nn.init.ones_(made.module.value.linear.weight)
    return made


def samples() -> LanguageSamples:
    """Two sequences of five ids: a prompt of two and a response of three; the first is cut off at its end."""
    return LanguageSamples(
        ids=[np.arange(5), np.arange(5) + 4],
        places=[np.array([2, 3, 4])] * 2,
        token_index=np.arange(6),
        token_start=np.array([0, 3, 6]),
        end_row=np.array([0, -1]),
        ends=np.array([4, -1]),
        temperature=1.0,
    )


def value_loss(of: LanguagePolicy) -> dict[str, float]:
    """Size of the value loss's gradient in the model and in the value head."""
    now = of.forward(samples(), [0, 1], ("logprob", "value", "bootstrap_value"))
    assert now["value"] is not None and now.bootstrap_value is not None
    (now["value"].square().sum() + now.bootstrap_value[0] ** 2).backward()
    sizes = {}
    for name in ("model", "value"):
        gradients = [p.grad for p in of.module.get_submodule(name).parameters() if p.grad is not None]
        sizes[name] = float(sum(g.abs().sum() for g in gradients))
    return sizes


def test_the_value_loss_moves_the_model() -> None:  # rule 1
    assert min(value_loss(policy()).values()) > 0


def test_the_value_loss_stops_before_the_model() -> None:  # rule 2
    for options in ({}, {"value_layers": (8,)}):
        sizes = value_loss(policy(critic_gradient=False, **options))
        assert sizes["model"] == 0.0 and sizes["value"] > 0


def test_the_policy_is_the_same() -> None:  # rule 3
    one, other = (policy(critic_gradient=switch) for switch in (True, False))
    found = [p.forward(samples(), [0, 1], ("logprob", "value", "bootstrap_value")) for p in (one, other)]
    assert torch.equal(found[0]["logprob"], found[1]["logprob"]) and found[1]["logprob"].requires_grad
    assert torch.equal(found[0]["value"], found[1]["value"])


def test_layers_of_the_value_head() -> None:  # rule 4
    before = torch.get_rng_state()
    heads = [ValueHead(4, widths=(8, 8), seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    weights = [head.layers[0].weight for head in heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert not heads[0](torch.ones(3, 4)).any()
    assert policy().architecture()["value_head"] is True
    assert policy(value_layers=(8,)).architecture()["value_head"] == [8]
