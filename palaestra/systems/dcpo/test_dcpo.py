"""DCPO and its parts.

1. A group with returns 1, −0.1, 0, 1 gets the published numbers, on every segment.
2. Without memory actions it is GRPO, bit for bit.
3. A segment that starts without a memory action is refused, and so is a row without generated tokens.
4. A trajectory that reaches a limit has the return −0.1, whatever it earned before.
5. At most `segments` of each group are drawn, without replacement, others in each iteration, the same when resumed.
6. The loss of a segment is the sum over its rows, computed one by one.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.algebra import aggregate
from palaestra.data import StepTable, TokenBatch
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData
from palaestra.parts.estimators import grpo
from palaestra.parts.losses import ppo_clip
from palaestra.systems.dcpo.advantage import dcpo
from palaestra.systems.dcpo.resource_penalty import resource_penalty
from palaestra.systems.dcpo.segment_sample import segment_sample
from tests.parts.tables import quick, tables


def edited(**columns):
    """Four trajectories with returns 1, −0.1, 0, 1, cut into 2, 1, 1 and 3 segments."""
    given = {
        "group": ["g"] * 9,
        "trajectory": list("aaabcdddd"),
        "agent": ["p"] * 9,
        "turn": [0, 1, 2, 0, 0, 0, 1, 2, 3],
        "reward": [0, 0, 1, -0.1, 0, 0, 0, 0, 1],
        "segment": [0, 0, 1, 0, 0, 0, 1, 1, 2],
        "pruned": [0, 3, 0, 0, 0, 2, 0, 2, 0],
    }
    return StepTable(**{**given, **columns})


# ---- advantages -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ddof", "numbers"), [(1, (0.8641, -0.9464, -0.7818)), (0, (0.9977, -1.0928, -0.9027))])
def test_every_segment_gets_its_trajectorys_number(ddof, numbers):  # rule 1
    good, cut, bad = numbers
    expected = [good, good, good, cut, bad, good, good, good, good]
    assert dcpo(edited(), ddof=ddof).tolist() == pytest.approx(expected, abs=6e-5)


@quick
@given(tables())
def test_without_memory_actions_it_is_grpo(table):  # rule 2
    plain = table.replace(segment=[0] * len(table), pruned=None)
    assert torch.equal(dcpo(plain), grpo(plain))


@pytest.mark.parametrize("pruned", [None, [0, 0, 0, 0, 0, 2, 0, 2, 0]])
def test_a_segment_follows_a_memory_action(pruned):  # rule 3
    with pytest.raises(InvalidData, match="starts a segment, but the row before is not a memory action") as caught:
        dcpo(edited(pruned=pruned))
    assert "trajectory a, turn 2" in caught.value.where
    assert "program: curate" in caught.value.remedy


def test_padding_starts_no_segment():  # rule 3
    weight = [1, 1, 0, 1, 1, 1, 1, 1, 1]
    dcpo(edited(pruned=[0, 0, 0, 0, 0, 2, 0, 2, 0], row_weight=weight))


def test_a_segment_has_generated_tokens():  # rule 3
    with pytest.raises(InvalidData, match="a row has no response token"):
        dcpo(edited(token_count=[1, 1, 0, 1, 1, 1, 1, 1, 1]))


# ---- the price of limits ----------------------------------------------------------------------------------
def test_limits_cost_a_tenth_in_all():  # rule 4
    truncated = [False, False, True, False, False, False, False, False, False]
    table = edited(truncated=truncated, reward=[0.5, 0, 1, 0.3, 0, 0, 0, 0, 1])
    assert resource_penalty(table).tolist() == pytest.approx([0, 0, -0.1, 0.3, 0, 0, 0, 0, 1])
    assert resource_penalty(table, penalty=1.0)[:3].tolist() == [0, 0, -1]
    assert torch.equal(resource_penalty(edited()), edited()["reward"])


def test_padding_costs_nothing():  # rule 4
    truncated = [False, False, True, False, False, False, False, False, False]
    table = edited(truncated=truncated, row_weight=[1, 1, 0, 1, 1, 1, 1, 1, 1])
    assert torch.equal(resource_penalty(table), table["reward"])


# ---- segments of an update --------------------------------------------------------------------------------
def at(step=0, seed=0):
    return Iteration({}, step, seed=seed, temperature=1.0, token_budget=64)


def many(groups=3, trajectories=10, segments=4, rows=2):
    places = [
        (g, t, s, k) for g in range(groups) for t in range(trajectories) for s in range(segments) for k in range(rows)
    ]
    return StepTable(
        group=[g for g, *_ in places],
        trajectory=[f"{g}/{t}" for g, t, *_ in places],
        agent=["p"] * len(places),
        turn=[rows * s + k for *_, s, k in places],
        reward=[0.0] * len(places),
        segment=[s for *_, s, _ in places],
    )


def drawn(table, kept):
    """Group, trajectory and segment of every kept row."""
    rows = kept.nonzero()[:, 0].tolist()
    return [tuple(int(table[name][row]) for name in ("group", "trajectory", "segment")) for row in rows]


def test_some_segments_of_some_trajectories_are_drawn():  # rule 5
    table = many()
    found = drawn(table, segment_sample(table, at(), segments=16, trajectories=8))
    assert len(found) == 3 * 16 * 2
    assert len(set(found)) == 3 * 16  # both rows of a segment, or none
    for group in range(3):
        assert len({trajectory for g, trajectory, _ in found if g == group}) <= 8
    few = drawn(table, segment_sample(table, at(), segments=100, trajectories=2))
    assert len(set(few)) == 3 * 2 * 4


def test_other_segments_in_each_iteration():  # rule 5
    table = many()
    first, second = (segment_sample(table, at(number), segments=5) for number in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(segment_sample(table, at(1), segments=5), second)
    assert not torch.equal(segment_sample(table, at(0, seed=1), segments=5), first)


def test_every_segment_is_drawn_as_often_as_others():  # rule 5
    table = many(groups=1, trajectories=4)
    total = sum(segment_sample(table, at(step), segments=4, trajectories=4) for step in range(400))
    assert total.min() > 60
    assert total.max() < 140


def test_padding_is_not_drawn():  # rule 5
    table = many(groups=1, trajectories=2).replace(row_weight=[1.0] * 8 + [0.0] * 8)
    kept = segment_sample(table, at(), segments=4, trajectories=1)
    assert kept.tolist() == [1.0] * 8 + [0.0] * 8


def test_without_segments_a_trajectory_is_one():  # rule 5
    table = many(groups=1, trajectories=10, segments=1).replace(segment=None)
    assert segment_sample(table, at(), segments=3).sum() == 3 * 2


# ---- the loss ---------------------------------------------------------------------------------------------
def batch_of(advantage, logprob, rows, trajectories, weight):
    tokens = torch.tensor(rows)
    return TokenBatch(
        advantage=advantage[tokens].double(),
        logprob=logprob,
        logprob_old=logprob.detach(),
        weight=weight,
        row=tokens,
        trajectory=trajectories[tokens],
    )


def test_a_segments_loss_is_the_sum_over_its_rows():  # rule 6
    table, rows = edited(), [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    logprob = torch.linspace(-3, -0.1, len(rows), dtype=torch.float64, requires_grad=True)
    advantage, trajectories = dcpo(table), table["trajectory"]

    def loss(*kept):
        weight = torch.tensor([float(row in kept) for row in rows], dtype=torch.float64)
        batch = batch_of(advantage, logprob, rows, trajectories, weight)
        return aggregate(ppo_clip(batch, low=0.2, high=0.2)[0], batch, how="sequence-sum")

    whole, parts = loss(6, 7), [loss(6), loss(7)]  # the second segment of the last trajectory
    assert whole.item() == pytest.approx(sum(part.item() for part in parts))
    gradients = [torch.autograd.grad(part, logprob)[0] for part in (whole, *parts)]
    assert torch.allclose(gradients[0], gradients[1] + gradients[2])
