"""Muon, and the attention that MuonClip bounds: (1) Newton–Schulz and the step have the numbers of the definition, also
for tall matrices; (2) hidden matrices are orthogonalized, everything else is AdamW's; (3) a head shrinks by tau over
its largest logit, by the numbers of the definition; (4) measuring changes no number, and does not see padding; (5) a
gradient that is not finite moves nothing; (6) a saved state goes on exactly; (7) what does not fit is refused. Rules 5
to 7 hold for MuonClip too. (8) The steps are those of `torch.optim.Muon` up to the rounding of its bfloat16.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from palaestra.errors import CheckpointError, ContractError, InvalidData, RecipeError
from palaestra.models.attention import reading
from palaestra.models.networks import ActorCritic, RecurrentActorCritic
from palaestra.parts.optimizers import AdamW, matrices_of, muon, orthogonalized
from palaestra.systems.kimi_rl.attention import AttentionMeter, bound_logits
from palaestra.systems.kimi_rl.muon_clip import MuonClip
from tests.messages import told
from tests.parts.language_models import IDS, backward, grouped, largest, llama, trained


def test_newton_schulz() -> None:  # rule 1
    found = orthogonalized(torch.diag(torch.tensor([3.0, 1.0])))
    torch.testing.assert_close(found, torch.diag(torch.tensor([0.7530, 1.1337])), atol=6e-5, rtol=0)
    scaled = found * 0.2 * math.sqrt(2)
    torch.testing.assert_close(scaled, torch.diag(torch.tensor([0.2130, 0.3207])), atol=6e-5, rtol=0)
    matrix = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonalized(matrix), orthogonalized(matrix.T).T)
    values = torch.linalg.svdvals(orthogonalized(matrix))
    assert bool(((values > 0.6) & (values < 1.3)).all())
    assert torch.equal(orthogonalized(torch.zeros(2, 2)), torch.zeros(2, 2))


def test_step() -> None:  # rule 1
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
    optimizer = muon(layer, lr=0.1, momentum=0.5, weight_decay=0.1, clip=None)
    layer.weight.grad = torch.diag(torch.tensor([3.0, 1.0]))
    assert optimizer.step() == pytest.approx(math.sqrt(10))
    expected = torch.diag(torch.tensor([0.99 - 0.02130, 0.99 - 0.03207]))
    torch.testing.assert_close(layer.weight.detach(), expected, atol=1e-5, rtol=0)
    layer.weight.grad = torch.diag(torch.tensor([0.0, 2.5]))  # momentum 1.5, .5 + 2.5: the mirror image of the first
    optimizer.step()
    moved = 0.99 * torch.diag(torch.tensor([0.9687, 0.95793])) - layer.weight.detach()
    assert moved[0, 0] > moved[1, 1] > 0  # the smaller singular value has grown the most


@pytest.mark.parametrize("shape", [(24, 16), (16, 40), (64, 64)])
def test_steps_of_torch(shape: tuple[int, int]) -> None:  # rule 8
    draw = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Linear(shape[1], shape[0], bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    start = ours.weight.detach().clone()
    one = muon(ours, lr=0.01, momentum=0.9, weight_decay=0.1, clip=None)
    other = torch.optim.Muon(
        theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=False, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(5):
        gradient = torch.randn(shape, generator=draw)
        ours.weight.grad, theirs.weight.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    difference = (ours.weight - theirs.weight).detach().norm() / (ours.weight - start).detach().norm()
    assert 0 < float(difference) < 0.02


def test_who_is_orthogonal() -> None:  # rule 2
    model = nn.ModuleDict({"model": llama(layers=1), "value": nn.Linear(16, 1)})
    names = {id(p): name for name, p in model.named_parameters()}
    chosen = {names[id(p)].split(".")[-2] for p in matrices_of(model, apart=("value",))}
    assert chosen == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    network = ActorCritic(4, 3, hidden=(8, 8), seed=0)
    assert {tuple(p.shape) for p in matrices_of(network, apart=("actor", "critic"))} == {(8, 4), (8, 8)}
    assert len(matrices_of(RecurrentActorCritic(4, 3, hidden=(8, 8), seed=0), apart=("actor", "critic"))) == 6


def test_the_rest_is_adam() -> None:  # rule 2
    one, other = llama(), llama()
    optimizers = [
        muon(one, lr=1e-2, weight_decay=0.1, clip=None),
        AdamW(other.parameters(), lr=1e-2, weight_decay=0.1, clip=None),
    ]
    for optimizer, model in zip(optimizers, (one, other), strict=True):
        trained(optimizer, model, 1)
    hidden = {id(p) for p in matrices_of(one, apart=())}
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs) == (id(mine) not in hidden)


def test_gamma() -> None:  # rule 3
    layer = llama(layers=1).model.layers[0].self_attn
    before = layer.q_proj.weight.detach().clone(), layer.k_proj.weight.detach().clone()
    gamma = bound_logits(layer, torch.tensor([250.0, 80.0]), tau=100.0)
    torch.testing.assert_close(gamma, torch.tensor([0.4, 1.0]))
    rows = torch.tensor([0.6325, 1.0]).repeat_interleave(8)[:, None]
    torch.testing.assert_close(layer.q_proj.weight.detach(), before[0] * rows, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(layer.k_proj.weight.detach(), before[1] * rows, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [llama, grouped], ids=["own", "shared"])
def test_measuring_changes_nothing(make: Any) -> None:  # rule 4
    plain, measured = make(), make()
    meter = AttentionMeter(measured)
    for mask in (None, torch.tensor([[1] * 8, [0] * 3 + [1] * 5, [1] * 8])):
        outs = [model(input_ids=IDS, attention_mask=mask, use_cache=False).logits for model in (plain, measured)]
        assert torch.equal(*outs)
    meter.reset()
    with torch.no_grad():
        measured(input_ids=IDS, use_cache=False)
    assert all(bool((own == -torch.inf).all()) for own in meter.largest())  # only passes with gradient are measured
    copied = copy.deepcopy(measured)
    copied(input_ids=IDS, use_cache=False)
    assert all(bool((own == -torch.inf).all()) for own in meter.largest())  # a copy is measured by itself


def test_largest_logit() -> None:  # rule 4
    model = grouped()
    layer = model.model.layers[0].self_attn
    seen: dict[str, Tensor] = {}
    layer.register_forward_pre_hook(lambda _, given, kwargs: seen.update(kwargs), with_kwargs=True)
    found = largest(model)[0]
    model.config._attn_implementation = "eager"
    hidden, (cosine, sine) = seen["hidden_states"], seen["position_embeddings"]

    def turned(x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * cosine[:, None] + torch.cat((-high, low), -1) * sine[:, None]

    query = turned(layer.q_proj(hidden).view(3, 8, 4, 4).transpose(1, 2))
    key = turned(layer.k_proj(hidden).view(3, 8, 2, 4).transpose(1, 2)).repeat_interleave(2, 1)
    logits = (query @ key.transpose(2, 3)) / 2
    logits = logits.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(found, logits.amax((0, 2, 3)).detach())


def test_padding_is_not_measured() -> None:  # rule 4
    model, short = llama(grow=5.0), IDS[:1, :5]
    padded = torch.nn.functional.pad(short, (0, 3))
    meter = AttentionMeter(model)
    with reading([5]):
        model(input_ids=padded, use_cache=False)
    found = [own.clone() for own in meter.largest()]
    torch.testing.assert_close(found, largest(model, short))


@pytest.mark.parametrize("kind", [muon, MuonClip])
def test_gradient_that_is_not_finite(kind: Any) -> None:  # rule 5
    model = llama()
    optimizer = kind(model, lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero()
    backward(model)
    next(model.parameters()).grad[0, 0] = torch.nan
    assert math.isnan(optimizer.step()) and optimizer.skipped == 1
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("kind", [muon, MuonClip])
def test_resume_is_exact(kind: Any) -> None:  # rule 6
    options: dict[str, Any] = {"lr": 0.01, "warmup": 3, "decay": "cosine", "total_steps": 10}
    whole, part = llama(), llama()
    expected = trained(kind(whole, **options), whole, 6)
    first = kind(part, **options)
    trained(first, part, 3)
    second = kind(part, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state_dict()["steps"] == first.state_dict()["steps"] == 3
    assert all(map(torch.equal, expected, trained(second, part, 3)))
    with told(CheckpointError, "matrices"):
        kind(llama(layers=1), **options).load_state_dict(first.state_dict())


def test_bad_input() -> None:  # rule 7
    for tau in (0.0, -1.0):
        with pytest.raises(RecipeError, match="cannot take `tau"):
            MuonClip(llama(), lr=0.1, tau=tau)
    with told(InvalidData, "(3,)"):
        orthogonalized(torch.ones(3))
    for bad in (torch.nan, torch.inf):
        with told(InvalidData, "is not finite"):
            bound_logits(llama().model.layers[0].self_attn, torch.tensor([1.0, bad]), tau=100.0)
    with pytest.raises(RecipeError, match=r"optimizer: muon_clip[\s\S]*decay: linear"):
        MuonClip(llama(), lr=0.1, decay="linear")
    with told(ContractError, "orthogonalized"):
        muon(nn.ModuleDict({"actor": nn.Linear(2, 2)}), lr=0.1)


def test_attention_that_cannot_be_bounded() -> None:  # rule 7
    with pytest.raises(ContractError, match="no layer has the projections"):
        MuonClip(ActorCritic(4, 3, seed=0), lr=0.1)
    with pytest.raises(ContractError, match="no layer has the projections"):
        AttentionMeter(GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2)))
    normed = llama()
    normed.model.layers[0].self_attn.q_norm = nn.RMSNorm(8)
    with pytest.raises(ContractError, match="normalized after their projection"):
        AttentionMeter(normed)
    adapted = llama()
    adapted.model.layers[0].self_attn.q_proj = nn.Sequential(nn.Linear(16, 16))
    with told(ContractError, "plain linear projections"):
        AttentionMeter(adapted)
    eager = llama()
    eager.config._attn_implementation = "eager"
    with pytest.raises(ContractError, match="attention is `eager`"):
        AttentionMeter(eager)
