"""The outputs of an output layer that is not trained: (1) values and gradients are those of the plain computation, for
any temperature, for one chunk and several, also where a token is almost certain and in bfloat16; (2) a gradient that
nobody asks for costs nothing; (3) which layers it takes; (4) a policy with low-rank additions uses it, and its numbers
are those of the usual way; (5) it keeps no logits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from palaestra.models.causal_lm import make_causal_lm
from palaestra.policies import frozen_head as tested
from palaestra.policies import language_trainer
from palaestra.policies.frozen_head import covers, frozen_head, is_frozen, rows_at_once
from palaestra.policies.language_trainer import LanguageModule
from palaestra.policies.outputs import token_entropy, token_logprob
from palaestra.policies.sequences import LanguageInputs

VOCABULARY, WIDTH = 50, 8


def head(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> nn.Linear:
    made = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype).requires_grad_(False)
    draw = torch.Generator().manual_seed(1)
    made.weight.copy_(scale * torch.randn(VOCABULARY, WIDTH, generator=draw))
    return made


def states(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(count)
    taken = torch.randint(VOCABULARY, (count,), generator=draw)
    return torch.randn(count, WIDTH, generator=draw).to(dtype).requires_grad_(), taken


def plain(hidden: Tensor, layer: nn.Linear, taken: Tensor, temperature: float) -> dict[str, Tensor]:
    log_p = torch.log_softmax(layer(hidden) / (temperature or 1.0), -1)
    return {"logprob": token_logprob(log_p, taken), "entropy": token_entropy(log_p, taken)}


def gradient(outputs: dict[str, Tensor], hidden: Tensor, **weights: float) -> Tensor:
    factors = torch.linspace(-1, 2, len(hidden), dtype=torch.float64)
    loss = sum(weight * (factors * outputs[name]).sum() for name, weight in weights.items())
    return torch.autograd.grad(loss, hidden)[0]  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("weights", [{"logprob": 1.0}, {"entropy": 0.5}, {"logprob": 1.0, "entropy": -2.0}])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_1_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, count: int, temperature: float, weights: dict[str, float]
) -> None:
    monkeypatch.setattr(tested, "rows_at_once", lambda *_: 3)
    layer, (hidden, taken) = head(), states(count)
    ours, theirs = (way(hidden, layer, taken, temperature) for way in (frozen_head, plain))
    for name, column in theirs.items():
        torch.testing.assert_close(ours[name], column, atol=1e-12, rtol=0)
    left, right = gradient(ours, hidden, **weights), gradient(theirs, hidden, **weights)
    torch.testing.assert_close(left, right, atol=1e-12, rtol=0)


def test_1_almost_certain_tokens() -> None:
    """Where p is 0.9999, the gradient is small. In bfloat16 it is as good as that of the plain computation."""
    layer, (hidden, _) = head(torch.bfloat16, 4.0), states(64)
    taken = layer(hidden.bfloat16()).argmax(-1)
    low = hidden.detach().bfloat16().requires_grad_()
    right = gradient(
        {"logprob": token_logprob(torch.log_softmax(layer(low).float(), -1), taken)}, low, logprob=1.0
    ).double()
    found = gradient(frozen_head(low, layer, taken, 1.0), low, logprob=1.0).double()
    assert right.norm(dim=-1).min() < 1e-4
    assert ((found - right).norm(dim=-1) < 0.02 * right.norm(dim=-1) + 1e-9).all()


def test_2_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (hidden, taken) = head(), states(5)
    called: list[int] = []
    monkeypatch.setattr(tested, "_back", lambda *_: called.append(1))
    with torch.no_grad():
        assert not frozen_head(hidden, layer, taken, 1.0)["logprob"].requires_grad
    assert not called


def test_3_which_layers() -> None:
    layer = head()
    assert is_frozen(layer) and not is_frozen(None)
    assert not is_frozen(nn.Linear(2, 3).requires_grad_(False)) and not is_frozen(head().requires_grad_(True))
    layer.register_forward_hook(lambda *_: None)
    assert not is_frozen(layer)
    assert covers({"logprob": token_logprob, "entropy": token_entropy}, ["entropy"])
    assert not covers({"logprob": token_logprob, "p2": token_entropy}, ["logprob", "p2"])
    assert rows_at_once(150_000, "cpu") == 64 and rows_at_once(256, "cpu") == 2**14


@pytest.mark.parametrize("wanted", [("logprob",), ("logprob", "entropy")])
def test_4_a_policy_uses_it(monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...]) -> None:
    model = make_causal_lm(vocabulary=VOCABULARY, hidden=16, heads=2, seed=0)
    model.get_output_embeddings().weight.requires_grad_(False)
    outputs = {"logprob": token_logprob, "entropy": token_entropy}
    module = LanguageModule("p", model, None, outputs, critic_gradient=False)
    ids = torch.arange(12).view(1, 12)
    batch = LanguageInputs(
        ids=ids,
        lengths=[12],
        response=(torch.zeros(5, dtype=torch.long), torch.arange(6, 11)),
        targets=ids[0, 7:12],
        temperature=0.9,
        ends=torch.tensor([-1]),
    )
    found: list[Any] = []
    for way in (frozen_head, None):
        if way is None:
            monkeypatch.setattr(language_trainer, "is_frozen", lambda _: False)
        model.zero_grad()
        columns = module(batch, wanted).columns
        assert list(columns) == list(wanted)
        sum(column.sum() for column in columns.values()).backward()
        found.append((columns, model.model.layers[0].self_attn.q_proj.weight.grad.clone()))
    for name in wanted:
        torch.testing.assert_close(found[0][0][name], found[1][0][name], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-6, rtol=0)


def test_5_no_logits_are_kept() -> None:
    layer, (hidden, taken) = head(), states(6)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        frozen_head(hidden, layer, taken, 1.0)
    assert sorted({tuple(x.shape) for x in kept}) == [(6, WIDTH), (VOCABULARY, WIDTH)]
