"""Rules of the critics of utterances:

1. Initial weights are a function of the seed; the global random state is neither read nor changed; heads differ.
2. Values depend neither on the other rows nor on padding.
3. Q depends on the utterance, V does not; gradients reach exactly the weights that a head uses.
4. Moving a target: (1 − tau) · target + tau · online; tau = 1 copies; no gradient reaches a frozen copy.
5. A copy of a language model gives the model's states at the start, learns, and leaves the model as it was.
6. Refused: an empty utterance, an empty situation, an architecture that reads neither vectors nor ids.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palaestra.errors import InvalidData
from palaestra.models.causal_lm import make_causal_lm
from palaestra.systems.archer.critics import TwinCritic, frozen_copy, move_towards

VECTORS, IDS = {"size": 3, "actions": 4}, {"vocabulary": 20}
BOTH = pytest.mark.parametrize("architecture", [VECTORS, IDS], ids=["vectors", "ids"])


def situations(architecture, count=6):
    dice = np.random.default_rng(0)
    if architecture is VECTORS:
        return [dice.random(3).astype(np.float32) for _ in range(count)]
    return [dice.integers(0, 20, 2 + i).astype(np.int32) for i in range(count)]


def utterances(architecture, count=6):
    if architecture is VECTORS:
        return [np.array([i % 4], np.int32) for i in range(count)]
    return [np.arange(1, 2 + i % 3, dtype=np.int32) for i in range(count)]


def values(critic, architecture, rows=slice(None)):
    return torch.stack(critic.both(situations(architecture)[rows], utterances(architecture)[rows]))


@BOTH
def test_1_weights_come_from_the_seed(architecture):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = values(TwinCritic(architecture, hidden=8, seed=3), architecture)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(values(TwinCritic(architecture, hidden=8, seed=3), architecture), first)
    assert not torch.equal(values(TwinCritic(architecture, hidden=8, seed=4), architecture), first)
    assert first.shape == (2, 2, 6)
    assert not torch.allclose(first[:, 0], first[:, 1])


@BOTH
def test_2_rows_are_apart(architecture):
    critic = TwinCritic(architecture, hidden=8)
    alone = torch.cat([values(critic, architecture, slice(i, i + 1)) for i in range(6)], -1)
    torch.testing.assert_close(values(critic, architecture), alone)


@BOTH
def test_3_what_heads_see(architecture):
    critic = TwinCritic(architecture, hidden=8)
    same = situations(architecture, 1) * 2
    q, v = critic.both(same, utterances(architecture, 2))
    assert not torch.allclose(q[:, 0], q[:, 1])
    torch.testing.assert_close(v[:, 0], v[:, 1])
    torch.testing.assert_close(critic.v(same), v)
    assert torch.equal(critic.q(same, utterances(architecture, 2)), q)
    critic.v(situations(architecture)).sum().backward()
    assert all(weight.grad is None for weight in critic.q_heads.parameters())
    assert all(weight.grad is not None for weight in critic.v_heads.parameters())
    values(critic, architecture).sum().backward()
    assert all(weight.grad is not None for weight in critic.parameters())


@BOTH
def test_4_targets_follow(architecture):
    online, other = (TwinCritic(architecture, hidden=8, seed=seed) for seed in (0, 1))
    target = frozen_copy(other)
    move_towards(target, online, tau=0.25)
    for slow, fast, start in zip(target.parameters(), online.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(slow, 0.75 * start + 0.25 * fast)
        assert not slow.requires_grad and fast.requires_grad
    move_towards(target, online, tau=1.0)
    assert torch.equal(values(target, architecture), values(online, architecture))
    assert not values(target, architecture).requires_grad


def test_5_copies_of_language_models():
    model = make_causal_lm(vocabulary=20, hidden=16, layers=1, heads=2, context=32, seed=0)
    before = [weight.clone() for weight in model.parameters()]
    critic = TwinCritic({"vocabulary": 20, "hidden": 16}, model=model.base_model, hidden=8)
    prompt = np.arange(1, 6, dtype=np.int32)
    hidden = model.base_model(torch.from_numpy(prompt).long()[None]).last_hidden_state[0, -1]
    torch.testing.assert_close(critic.v([prompt, prompt[:2]])[:, :1], critic.v_heads(hidden[None]))
    alone = torch.cat([values(critic, IDS, slice(i, i + 1)) for i in range(6)], -1)
    torch.testing.assert_close(values(critic, IDS), alone)
    values(critic, IDS).sum().backward()
    assert all(weight.grad is None for weight in model.parameters())
    assert all(weight.grad is not None for weight in critic.encoder.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@BOTH
def test_6_empty_ones_are_refused(architecture):
    critic = TwinCritic(architecture, hidden=8)
    seen = situations(architecture, 2)
    with pytest.raises(InvalidData, match="an utterance is empty"):
        critic.q(seen, [np.array([1], np.int32), np.array([], np.int32)])
    with pytest.raises(InvalidData, match="a situation is empty"):
        critic.v([np.array([], np.int32)])
    with pytest.raises(InvalidData, match="no situation is given"):
        critic.v([])


def test_6_other_policies_are_refused():
    with pytest.raises(InvalidData, match="kind `painting` reads neither vectors nor token ids"):
        TwinCritic({"kind": "painting"})
