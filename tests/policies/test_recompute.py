"""What must hold of recomputation: (1) outputs and gradients are the same, with packed rows and with additions;
(2) each layer is computed twice in an update, and once in a pass without gradient; (3) afterwards no layer
is in training mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.data import RunSetup
from palaestra.models.packing import cost_of_token
from palaestra.policies.language import LanguagePolicy
from tests.policies.test_packed_batches import samples


def policy(*, recompute: bool, packing: bool, lora: dict[str, Any] | None) -> Any:
    sizes = {"hidden": 32, "layers": 2, "heads": 2, "context": 128, "vocabulary": 300}
    setup = RunSetup(seed=0, texts=lambda: ["a b"])
    made = LanguagePolicy("p", setup, **sizes, recompute=recompute, packing=packing, lora=lora).as_trained()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in made.module.parameters():
            p.normal_(std=0.1, generator=draw)
    return made


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["whole", "lora"])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_recomputation(packing: bool, lora: dict[str, Any] | None) -> None:
    found, calls = [], []
    for recompute in (False, True):
        made = policy(recompute=recompute, packing=packing, lora=lora)
        counted = [0]
        norm = made.network.model.model.layers[0].input_layernorm
        norm.register_forward_hook(lambda *_, counted=counted: counted.__setitem__(0, counted[0] + 1))
        some = samples(cost_of_token(made.network.model) if packing else None)
        out = made.forward(some, range(7), ("logprob", "entropy"))
        (out["logprob"].sum() + out["entropy"].sum()).backward()
        found.append([out["logprob"], *(p.grad for p in made.module.parameters() if p.grad is not None)])
        with torch.no_grad():
            made.forward(some, range(7), ("logprob",))
        calls.append(counted[0])
        assert not any(layer.training for layer in made.network.model.model.layers)
    assert len(found[0]) > 3
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, atol=1e-6, rtol=1e-5)
    assert calls == [2, 3]
