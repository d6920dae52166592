"""Credit in teams. The published numbers are in tests/golden/team_methods.yaml; here is what holds for every input.

M-GRPO: (1) without calls it is GRPO with the population deviation; (2) with d calls in every rollout nothing is left
to chance; (3) "duplicate" counts exactly d calls of each calling rollout; (4) the same seed gives the same alignment
in any order of rows, another seed another one; (5) in the mean over seeds its advantages are those of "weight";
(6) each calling rollout weighs the same; (7) all rows of a call share one number; (8) what it refuses.
Rewards of a hierarchy: (9) a malformed rollout or call earns exactly 0; (10) one reward a rollout and a call, on the
last row in time; (11) what they refuse.
Flow-GRPO: (12) every planner turn of a trajectory has the same advantage; (13) with one turn each it is GRPO; (14) rows
of other modules get 0 and never enter the loss; (15) what it refuses.
HRPO: (16) λ = 0 is GRPO; (17) the action part is neither centered nor scaled; (18) what it refuses.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.systems.hrpo.advantage import hrpo
from palaestra.systems.m_grpo.advantage import _shares, m_grpo
from palaestra.systems.m_grpo.calls import calls_of
from palaestra.systems.m_grpo.hierarchical import hierarchical
from palaestra.training.credit import chain
from tests.parts.tables import close, quick, shuffled, tables

alone = tables(agents=("M",))


def team(counts: list[int], rewards: list[float], *, rows: int = 1, **columns: Any) -> StepTable:
    """One group: rollout m calls `counts[m]` times, and each call has `rows` rows and the next of `rewards` in all."""
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


# ---- M-GRPO -----------------------------------------------------------------------------------------------
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


# ---- rewards of a hierarchy -------------------------------------------------------------------------------
def judged(**columns: Any) -> StepTable:
    """Two rollouts; the first calls twice, the second once; two rows a call."""
    fine = {"format": [1.0] * 8, "outcome": [1.0] * 5 + [0.0] * 3, "expert": [0, 0, 1, 0, 0, 0, 0, 1.0]}
    return team([2, 1], [9.0] * 3, rows=2, **{**fine, **columns})


@quick
@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_malformed_earns_nothing(sound: list[bool]) -> None:  # rule 9
    found = hierarchical(judged(format=[float(x) for x in sound])).tolist()
    for rows in ([0], [1, 2], [3, 4], [5], [6, 7]):
        assert (sum(found[row] for row in rows) > 0) == all(sound[row] for row in rows)


def test_one_reward_on_the_last_row() -> None:  # rule 10
    expected = [1, 0, 1, 0, 0.5, 0.1, 0, 0.6]
    assert close(hierarchical(judged()), expected)
    order = shuffled(judged(), 3)
    assert close(hierarchical(judged().take(order)), torch.tensor(expected)[order])
    cut = judged(weight=[1, 1, 0, 1, 1, 1, 1, 1])  # the row with the judgment is dropped
    assert close(hierarchical(cut), [1, 0.5, 0, 0, 0.5, 0.1, 0, 0.6])
    assert close(hierarchical(judged(expert=None), sub_expert=0)[1:5], [0, 0.5, 0, 0.5])


def test_what_hierarchical_refuses() -> None:  # rule 11
    with pytest.raises(InvalidData, match=r"trajectory t1(.|\n)*main agent's result is not known yet"):
        hierarchical(judged(outcome=[1.0] * 5 + [float("nan")] * 3))
    with pytest.raises(InvalidData, match=r"it is 0.5; a malformed act would be paid for"):
        hierarchical(judged(format=[0.5] + [1.0] * 7))
    with pytest.raises(MissingColumn, match="no judge says how good they were"):
        hierarchical(judged(expert=None))
    with pytest.raises(MissingColumn, match="format"):
        hierarchical(team([1], [0.5], outcome=[1.0, 1.0]))
    with pytest.raises(InvalidData, match="parent is none"):
        hierarchical(judged(parent=[None] * 8), main="main")
    with pytest.raises(RecipeError, match="main_format"):
        hierarchical(judged(), main_format=-1)


# ---- Flow-GRPO --------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_every_turn_has_the_same(table: StepTable) -> None:  # rule 12
    found, names = flow_grpo(table), table["trajectory"]
    for code in names.unique():
        assert len(found[names == code].unique()) == 1


@quick
@given(tables(one_row=True))
def test_one_turn_each_is_grpo(table: StepTable) -> None:  # rule 13
    assert torch.equal(flow_grpo(table), grpo(table))
    assert torch.equal(flow_grpo(table, unit="row"), grpo(table))


def flow(**columns: Any) -> StepTable:
    """Two trajectories of planner and executor; the first has two planner turns."""
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["planner", "executor"] * 3,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0, 0, 1, 0, 0, 0],
        "outcome": [1.0] * 4 + [0.0] * 2,
    }
    return StepTable(**{**base, **columns})


def test_other_modules_never_enter_the_loss() -> None:  # rule 14
    table = flow()
    others = table["agent"] == table.labels("agent").index("executor")
    credit = chain([lambda t: flow_grpo(t, planner="planner", unit="row")], table)
    assert bool((credit.advantage[others] == 0).all()) and bool((credit.advantage[~others] != 0).all())
    wild = table.replace(agent=["planner", "verifier"] * 3)  # who the others are changes nothing
    assert torch.equal(flow_grpo(wild, planner="planner", unit="row"), credit.advantage)


def test_what_flow_grpo_refuses() -> None:  # rule 15
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*no turn of `planner`, as 1 of 2"):
        flow_grpo(flow(agent=["planner", "executor"] * 2 + ["executor"] * 2), planner="planner")
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*the judge failed"):
        flow_grpo(flow(outcome=[1.0] * 4 + [float("nan")] * 2))
    assert bool((flow_grpo(flow(outcome=[float("nan")] * 6)) != 0).all())  # nothing is judged here
    with pytest.raises(InvalidData, match="belong to different tasks"):
        flow(task=["x"] * 4 + ["y"] * 2)


# ---- HRPO -------------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_without_action_weight_it_is_grpo(table: StepTable) -> None:  # rule 16
    assert torch.equal(hrpo(table, action_weight=0.0), grpo(table))


@quick
@given(tables(), st.sampled_from([0.25, 0.5, 2.0]))
def test_the_action_part_is_added_as_it_is(table: StepTable, share: float) -> None:  # rule 17
    difference = hrpo(table, action_weight=share) - grpo(table)
    assert close(difference, share * table["process"])
    whole = hrpo(table, action_weight=share, group_weight=0.0, action=("trajectory",))
    totals = torch.zeros(int(table["trajectory"].max()) + 1).index_add(0, table["trajectory"], table["process"])
    assert close(whole, share * totals[table["trajectory"]])


def test_what_hrpo_refuses() -> None:  # rule 18
    with pytest.raises(MissingColumn, match="no row has a score of its action"):
        hrpo(flow())
    with pytest.raises(MissingColumn, match="no row has a score of its action"):
        hrpo(flow(process=[float("nan")] * 6))
    with pytest.raises(RecipeError, match="action_weight"):
        hrpo(flow(process=[0.0] * 6), action_weight=-1)
    missing = hrpo(flow(process=[float("nan")] * 5 + [-1.0]))
    assert close(missing - grpo(flow()), [0, 0, 0, 0, 0, -0.5])  # a row without a score has none, not a bad one
