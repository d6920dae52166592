"""MuonClip:

1. QK-Clip shrinks a head by tau over its largest logit: queries and keys alike, or queries alone where keys are shared.
   On the same batch no logit then exceeds tau.
2. With tau infinite it is Muon, and with `matrices: adamw` it is AdamW, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from palaestra.parts.optimizers import AdamW, muon
from palaestra.systems.kimi_rl.attention import heads_of
from palaestra.systems.kimi_rl.muon_clip import MuonClip
from tests.parts.language_models import grouped, largest, llama, trained

HUGE = 1e9  # a learning rate of 1e-9 changes no weight by a measurable amount


@pytest.mark.parametrize("make", [lambda: llama(layers=1, grow=40.0), lambda: grouped(20.0)], ids=["own", "shared"])
def test_no_logit_exceeds_tau_on_the_same_batch(make: Any) -> None:  # rule 1
    model = make()
    layer = model.model.layers[0].self_attn
    keys = layer.k_proj.weight.detach().clone()
    before = largest(model)[0]
    tau = float(before.median())
    assert float(before.max()) > tau > 0
    optimizer = MuonClip(model, lr=1 / HUGE, tau=tau, weight_decay=0.0)
    trained(optimizer, model, 1)
    assert optimizer.metrics["policy/attention_logit"] == pytest.approx(float(before.max()), rel=1e-4)
    after = largest(model)[0]
    assert float(after.max()) <= tau * (1 + 1e-4)
    torch.testing.assert_close(after, before.clamp(max=tau), rtol=1e-4, atol=1e-4)
    shared = heads_of(layer)[0] != heads_of(layer)[1]
    assert torch.allclose(layer.k_proj.weight, keys, rtol=1e-4, atol=1e-6) == shared
    clipped = float((before > tau).float().mean())
    assert optimizer.metrics["policy/clipped_heads"] == pytest.approx(clipped)


def test_logits_stay_bounded_while_training() -> None:  # rule 1
    tops: dict[float, float] = {}
    for tau in (10.0, math.inf):
        model = llama(grow=30.0)
        optimizer = MuonClip(model, lr=0.02, tau=tau, weight_decay=0.0)
        trained(optimizer, model, 12)
        tops[tau] = optimizer.metrics["policy/attention_logit"]
    assert tops[10.0] < 1.2 * 10.0 < 15.0 < tops[math.inf]  # a step itself may raise logits a little above tau


def test_without_bound_it_is_muon() -> None:  # rule 2
    one, other = llama(), llama()
    found = trained(MuonClip(one, lr=1e-2, tau=math.inf), one, 4)
    assert all(map(torch.equal, found, trained(muon(other, lr=1e-2), other, 4)))


def test_with_adams_matrices_it_is_adamw() -> None:  # rule 2
    one, other = llama(), llama()
    found = trained(MuonClip(one, lr=1e-2, tau=math.inf, matrices="adamw", weight_decay=0.1), one, 4)
    assert all(map(torch.equal, found, trained(AdamW(other.parameters(), lr=1e-2, weight_decay=0.1), other, 4)))
