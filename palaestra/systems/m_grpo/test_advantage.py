"""M-GRPO, for every input; the published numbers are in golden.yaml.

1. Without calls it is GRPO with the population deviation.
2. With d calls in every rollout nothing depends on the seed.
3. "duplicate" counts exactly d calls of each calling rollout.
4. The same seed gives the same alignment in any order of rows, another seed another one.
5. In the mean over seeds the copies of "duplicate" are the weights of "weight".
6. Each calling rollout weighs the same.
7. All rows of a call share one number.
8. Calls without a parent, unknown agents, bad options and single members are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.m_grpo.advantage import _shares
from palaestra.systems.m_grpo.advantage import m_grpo as m_grpo_part
from palaestra.systems.m_grpo.calls import calls_of
from tests.parts.tables import close, quick, shuffled, tables


def m_grpo(table: StepTable, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """The part in an iteration of this seed."""
    return m_grpo_part(table, Iteration(seed=seed), **options)


alone = tables(agents=("M",))


def team(counts: list[int], rewards: list[float], *, rows: int = 1, **columns: Any) -> StepTable:
    """One group: rollout m calls `counts[m]` times; each call has `rows` rows, which share the next of `rewards`."""
    made: dict[str, list[Any]] = {
        name: [] for name in ("trajectory", "agent", "turn", "reward", "invocation", "parent")
    }
    given = iter(rewards)
    for rollout, count in enumerate(counts):
        steps: list[tuple[Any, ...]] = [("main", float(rollout % 2), 0, None)]
        for call in range(count):
            steps += [("sub", next(given) / rows, call + 1, 0)] * rows
        for turn, (agent, reward, invocation, parent) in enumerate(steps):
            row = (f"t{rollout}", agent, turn, reward, invocation, parent)
            for name, value in zip(made, row, strict=True):
                made[name].append(value)
    return StepTable(**{"group": ["g"] * len(made["turn"]), **made, **columns})


def copies(table: StepTable, calls: int, seed: int = 0) -> torch.Tensor:
    """How often "duplicate" counts each call."""
    called = calls_of(table, main="main", where="test")
    one = called.key
    weighed = type(one)(one.codes, one.size, one.names, (~called.main).double())
    rows = torch.zeros(one.size, dtype=torch.int64)
    rows[one.codes] = torch.arange(len(table))
    found = _shares(table, weighed, rows, align="duplicate", calls=calls, seed=seed)
    return found[torch.tensor([not bool(called.main[row]) for row in rows])]


@quick
@given(alone)
def test_without_calls_it_is_grpo(table: StepTable) -> None:  # rule 1
    assert torch.equal(m_grpo(table), grpo(table, ddof=0))
    assert torch.equal(m_grpo(table, main="M", align="duplicate"), grpo(table, ddof=0))


@quick
@given(st.integers(1, 4), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=12, max_size=12))
def test_nothing_is_left_to_chance(calls: int, rewards: list[float]) -> None:  # rule 2
    table = team([calls] * 3, rewards)
    first = m_grpo(table, align="duplicate", calls=calls, seed=0)
    assert torch.equal(first, m_grpo(table, align="duplicate", calls=calls, seed=1))
    assert close(first, m_grpo(table))


@quick
@given(st.lists(st.integers(0, 7), min_size=2, max_size=5), st.integers(1, 6), st.integers(0, 99))
def test_the_aligned_count(counts: list[int], calls: int, seed: int) -> None:  # rule 3
    table = team(counts, [0.5] * sum(counts))
    found = copies(table, calls, seed) if sum(counts) else torch.zeros(0)
    assert found.sum() == calls * sum(count > 0 for count in counts)
    for part, count in zip(found.split(counts), counts, strict=True):
        assert part.sum() == (calls if count else 0)
        if count:
            assert part.max() - part.min() <= 1


@quick
@given(st.integers(0, 10**6))
def test_the_same_seed_gives_the_same_alignment(seed: int) -> None:  # rule 4
    table = team([3, 5, 7], [k / 16 for k in range(15)])
    order = shuffled(table, seed)
    first = m_grpo(table, align="duplicate", calls=2, seed=seed)
    assert close(m_grpo(table.take(order), align="duplicate", calls=2, seed=seed), first[order])


def test_another_seed_gives_another_alignment() -> None:  # rule 4
    table = team([3, 5, 7], [k / 16 for k in range(15)])
    found = {tuple(m_grpo(table, align="duplicate", calls=2, seed=seed).tolist()) for seed in range(8)}
    assert len(found) > 4
    assert all(sum(a != 0 for a in one) <= 3 + 6 for one in found)  # three of main, two of each rollout


def test_duplicates_have_the_mean_of_weights() -> None:  # rule 5
    table = team([1, 2, 5], [0.1, 0.9, 0.3, 0.2, 0.4, 0.8, 0.6, 0.7])
    own = copies(table, 3).new_zeros(8)
    for seed in range(400):
        own += copies(table, 3, seed) / 3
    expected = torch.tensor([1.0] + [1 / 2] * 2 + [1 / 5] * 5)
    assert close(own.float() / 400, expected, tolerance=0.05)


@quick
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_each_rollout_weighs_the_same(counts: list[int]) -> None:  # rule 6
    rewards = [float(rollout % 2) for rollout, count in enumerate(counts) for _ in range(count)]
    table = team(counts, rewards)
    called = table["agent"] == table.labels("agent").index("sub")
    found, single = m_grpo(table)[called], m_grpo(team([1] * len(counts), [float(k % 2) for k in range(len(counts))]))
    first = torch.tensor(counts).cumsum(0) - torch.tensor(counts)
    assert close(found[first], single[1::2])


def test_rollouts_without_calls_are_left_out() -> None:  # rule 6
    some, all_ = team([2, 0, 1], [0.9, 0.1, 0.4]), team([2, 1], [0.9, 0.1, 0.4])
    called = [some["agent"] == 1, all_["agent"] == 1]
    assert close(m_grpo(some)[called[0]], m_grpo(all_)[called[1]])


def test_rows_of_a_call_share_a_number() -> None:  # rule 7
    one, three = team([2, 1], [0.9, 0.1, 0.4]), team([2, 1], [0.9, 0.1, 0.4], rows=3)
    found = m_grpo(three)[three["agent"] == 1]
    assert close(found, m_grpo(one)[one["agent"] == 1].repeat_interleave(3))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"parent": [None, None, None, 0]}, r"trajectory t0, turn 1(.|\n)*`sub` acts in a call(.|\n)*parent is none"),
        ({"parent": [None, 5, None, 0]}, "its parent is turn 5"),
        ({"parent": [None, 1, None, 0]}, "its parent is turn 1"),
        ({"parent": [None, "main", None, 0]}, "`parent` is 'main', not the turn of an act"),
    ],
)
def test_a_call_needs_a_parent(columns: dict[str, Any], message: str) -> None:  # rule 8
    with pytest.raises(InvalidData, match=message):
        m_grpo(team([1, 1], [0.5, 0.25], **columns), main="main")


def test_what_m_grpo_refuses() -> None:  # rule 8
    table = team([1, 1], [0.5, 0.25])
    with pytest.raises(InvalidData, match="main agent `boss` never acts; the agents are main, sub"):
        m_grpo(table, main="boss")
    with pytest.raises(RecipeError, match="`calls: 0`"):
        m_grpo(table, calls=0)
    with pytest.raises(InvalidData, match="single member"):
        m_grpo(team([1, 0], [0.5]), singleton="error")
    with pytest.raises(InvalidData, match="no peer set has two members"):
        m_grpo(team([1], [0.5]))
