"""Rules of the actor-critics, each pinned by the test of the same number.

1. Initial weights are a function of the seed; the global random state is neither read nor moved.
2. Weights are orthogonal with the documented gains, biases 0; a fresh actor is nearly undecided.
3. Reading sequences is stepping through them one by one; neighbors and padding change nothing.
4. Without a critic there are no values; a shared body is one body; a body of its own keeps the value's
   gradient away from the actor.
5. Without memory, the lengths of sequences do not matter.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.models.networks import ActorCritic, RecurrentActorCritic

BOTH = pytest.mark.parametrize("make", [ActorCritic, RecurrentActorCritic])


def numbers(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in module.parameters()])


@BOTH
def test_1_weights_come_from_the_seed(make: type) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = numbers(make(5, 3, seed=7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(numbers(make(5, 3, seed=7)), first)
    assert not torch.equal(numbers(make(5, 3, seed=8)), first)
    assert bool(torch.isfinite(first).all())


def test_2_orthogonal() -> None:
    network = ActorCritic(6, 3, hidden=(8, 8), seed=0)
    for weight, gain in ((network.body[2].weight, 2**0.5), (network.actor.weight, 0.01), (network.critic.weight, 1.0)):
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), atol=1e-5, rtol=1e-5)
    memory = RecurrentActorCritic(6, 3, hidden=(8, 8), seed=0).memory
    for gate in memory.weight_hh_l0.split(8):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=1e-5)
    assert all(not bool(p.any()) for name, p in network.named_parameters() if "bias" in name)
    chances = torch.softmax(network.step(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)), None)[0], -1)
    assert float((chances - 1 / 3).detach().abs().max()) < 0.02


@pytest.mark.parametrize("shared", [True, False])
def test_3_reading_is_stepping(shared: bool) -> None:
    network = RecurrentActorCritic(4, 3, hidden=(16, 8), shared=shared, seed=3)
    lengths = torch.tensor([3, 1, 5])
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    logits, values = network.read(vectors, lengths, values=True)
    start = 0
    for length in lengths.tolist():
        own = vectors[start : start + length]
        alone, valued = network.read(own, torch.tensor([length]), values=True)
        torch.testing.assert_close(logits[start : start + length], alone)
        torch.testing.assert_close(values[start : start + length], valued)
        memory = network.start(1)
        for place, vector in enumerate(own):
            stepped, memory = network.step(vector[None], memory)
            torch.testing.assert_close(logits[start + place], stepped[0])
        start += length
    assert not torch.allclose(logits[2], network.step(vectors[2][None], network.start(1))[0][0])  # it does remember


@BOTH
def test_4_critics(make: type) -> None:
    vectors, lengths = torch.ones(4, 5), torch.tensor([4])
    assert make(5, 3, critic=False).read(vectors, lengths, values=True)[1] is None
    assert make(5, 3).read(vectors, lengths, values=False)[1] is None
    own, shared, none = (len(numbers(make(5, 3, **o))) for o in ({}, {"shared": True}, {"critic": False}))
    assert none < shared < own
    for options, touched in (({}, False), ({"shared": True}, True)):
        network = make(5, 3, **options)
        network.read(vectors, lengths, values=True)[1].sum().backward()
        body = network.body if make is ActorCritic else network.memory
        assert any(p.grad is not None for p in body.parameters()) is touched


def test_5_lengths_do_not_matter_without_memory() -> None:
    network, vectors = ActorCritic(5, 3), torch.eye(5)
    one, _ = network.read(vectors, torch.tensor([5]), values=True)
    other, _ = network.read(vectors, torch.tensor([2, 3]), values=True)
    assert torch.equal(one, other)
    assert torch.equal(one, network.step(vectors, network.start(5))[0])
