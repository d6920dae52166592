"""A team's reward, divided. Numbers by hand are in tests/golden/team_credit.yaml.

Mixed rewards: (1) a role's rewards sum to w · own + (1 − w) · team; (2) w = 1 leaves every reward bit for bit;
(3) w = 0 pays all roles the same; (4) the published example; (5) weights by role; (6) what is refused.
Shapley: (7) an episode's shares sum to its return less the baseline; (8) equal roles have equal shares; (9) where all
took part in all episodes everybody has an equal share; (10) who did not take part has nothing; guests are of no
coalition, and random absence finds a pipeline's shares; (11) what is refused.
Counterfactual: (12) its mean over each set of peers is 0; (13) in a game of two acts its gradient is the true one, by
enumeration, and "others" is it divided by the share of other acts; (14) where nobody acted otherwise it is 0;
(15) share 0 leaves rewards as they are; (16) of a replay, what the role changed; (17) what is refused.
All of them: (18) padding gets nothing and changes nothing; the order of rows does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.rewards import role_mix
from palaestra.systems.counterfactual import counterfactual
from palaestra.systems.shapley import shapley_credit
from tests.parts.tables import close, quick, shuffled, tables

OWN = ("trajectory", "agent")
few = settings(max_examples=10, deadline=None, derandomize=True)


# ---- mixed rewards ----------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_the_mix_of_each_role(table: StepTable, weight: float) -> None:  # rules 1, 3
    own, team = total_return(table, by=OWN).double(), total_return(table).double()
    mixed = total_return(table.replace(reward=role_mix(table, weight=weight)), by=OWN)
    assert torch.equal(mixed.double(), weight * own + (1 - weight) * team)
    judged = total_return(table.replace(reward=role_mix(table, weight=weight, team="outcome")), by=OWN)
    assert torch.equal(judged.double(), weight * own + (1 - weight) * table["outcome"])
    mean = total_return(table.replace(reward=role_mix(table, weight=1.0, pool="mean")), by=OWN)
    assert close(mean, own / torch.bincount(table.key(*OWN).codes)[table.key(*OWN).codes])


@quick
@given(tables(), st.integers(0, 10**6))
def test_all_of_their_own(table: StepTable, seed: int) -> None:  # rule 2
    noise = torch.randn(len(table), generator=torch.Generator().manual_seed(seed))
    table = table.replace(reward=noise)
    assert torch.equal(role_mix(table, weight=1.0), noise)
    assert torch.equal(role_mix(table, weight={"M": 1.0, "*": 1.0}, team="outcome"), noise)


def team(**columns: Any) -> StepTable:
    base: dict[str, Any] = {"group": ["g"] * 4, "trajectory": list("aabb"), "agent": ["plan", "solve"] * 2}
    return StepTable(**{**base, "turn": [0, 1] * 2, "reward": [0.8, 0.6, 0, 0], "outcome": [1, 1, 0, 0], **columns})


def test_the_published_example() -> None:  # rule 4
    assert close(role_mix(team(), team="outcome"), [0.9, 0.8, 0, 0])


def test_weights_by_role() -> None:  # rule 5
    assert close(role_mix(team(), weight={"plan": 1.0, "solve": 0.0}), [0.8, 1.4, 0, 0])
    assert close(role_mix(team(), weight={"solve": 0.0, "*": 1.0}), [0.8, 1.4, 0, 0])


def test_what_the_mix_refuses() -> None:  # rule 6
    for weight in (-0.1, 1.5, {"plan": 2.0}):
        with pytest.raises(RecipeError, match="weight"):
            role_mix(team(), weight=weight)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"role `solve` has none; there are weights for plan"):
        role_mix(team(), weight={"plan": 0.5})
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*it has no outcome"):
        role_mix(team(outcome=[1, 1, float("nan"), 0]), team="outcome")
    with pytest.raises(MissingColumn):
        role_mix(team(outcome=None), team="outcome")


# ---- Shapley ----------------------------------------------------------------------------------------------
@quick
@given(tables(agents=("M", "S", "T")), st.sampled_from([0.0, -1.5]))
def test_shares_sum_to_the_return(table: StepTable, baseline: float) -> None:  # rule 7
    paid = table.replace(reward=shapley_credit(table, baseline=baseline))
    assert close(total_return(paid), total_return(table).double() - baseline)


@quick
@given(tables())
def test_everybody_in_everything(table: StepTable) -> None:  # rules 8, 9
    """Every episode once more by the other role, so that both took part."""
    other = table.replace(agent=["S" if table.labels("agent")[a] == "M" else "M" for a in table["agent"].tolist()])
    names = [table.labels("trajectory")[t] for t in table["trajectory"].tolist()]
    groups = [table.labels("group")[g] for g in table["group"].tolist()]
    agents = [each.labels("agent")[a] for each in (table, other) for a in each["agent"].tolist()]
    both = StepTable(
        group=groups * 2,
        trajectory=names * 2,
        agent=agents,
        turn=range(2 * len(table)),
        reward=table["reward"].repeat(2),
    )
    paid = total_return(both.replace(reward=shapley_credit(both)), by=OWN)
    assert close(paid, total_return(both).double() / 2)


def test_absence_at_random_finds_the_shares() -> None:  # rule 10
    """A pipeline of two: success is 1 · 1 with both, 0.5 without a, 0.8 without b, 0.4 without anybody."""
    worth = {frozenset("ab"): 1.0, frozenset("a"): 0.8, frozenset("b"): 0.5}
    columns: dict[str, list[Any]] = {name: [] for name in ("trajectory", "agent", "turn", "reward", "weight")}
    for place, present in enumerate(worth):
        for turn, name in enumerate("ab"):  # a guest acts in place of who is absent
            row = (f"t{place}", name, turn, worth[present] if name == max(present) else 0.0, float(name in present))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    table = StepTable(group=["g"] * 6, **columns)
    found = shapley_credit(table, baseline=0.4)
    assert close(found, [0.45, 0.15, 0.4, 0, 0, 0.1])
    marked = table.replace(weight=None, format=table["weight"])
    assert close(shapley_credit(marked, baseline=0.4, present="format"), found)


def test_what_shapley_refuses() -> None:  # rule 11
    with pytest.raises(InvalidData, match=r"no episode of the group was played by \{plan\} alone"):
        shapley_credit(team(), missing="error")
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*none of its roles took part"):
        shapley_credit(team(), present="outcome")
    crowd: dict[str, Any] = {"group": ["g"] * 11, "trajectory": ["a"] * 11, "turn": range(11), "reward": [1.0] * 11}
    with pytest.raises(InvalidData, match="11 members"):
        shapley_credit(StepTable(agent=list("abcdefghijk"), **crowd))
    many: dict[str, Any] = {"group": ["g"] * 63, "turn": [0] * 63, "reward": [1.0] * 63}
    with pytest.raises(InvalidData, match="63 roles"):
        shapley_credit(StepTable(agent=range(63), trajectory=range(63), **many))


# ---- counterfactual ---------------------------------------------------------------------------------------
@quick
@given(tables())
def test_its_mean_over_peers_is_nothing(table: StepTable) -> None:  # rule 12
    by = ("group", "agent", "state_key")
    peers = table.key(*by)
    credit = counterfactual(table, by=by).double()
    assert close(torch.zeros(peers.size, dtype=torch.float64).index_add_(0, peers.codes, credit), [0.0] * peers.size)


def bandit(acts: tuple[tuple[int, int], ...], pay: Any) -> StepTable:
    """One episode for each pair of acts: two roles act at once and share what the pair is paid."""
    size = len(acts)
    return StepTable(
        group=["g"] * 2 * size,
        trajectory=[k for k in range(size) for _ in "ab"],
        agent=["a", "b"] * size,
        turn=[0, 1] * size,
        reward=[value for pair in acts for value in (pay[pair], 0.0)],
        state_key=["s"] * 2 * size,
        action_key=[act for pair in acts for act in pair],
    )


@pytest.mark.parametrize("against", ["all", "others"])
def test_its_gradient_is_that_of_the_return(against: Any) -> None:  # rule 13
    """All 4³ groups of three episodes, P_a(1) = 0.3, P_b(1) = 0.6: the mean of Σ C · ∂log P over groups is (n − 1)/n
    times the gradient of E[R]; with two acts "others" has the same direction."""
    p, pay = {"a": 0.3, "b": 0.6}, {(0, 0): 0.0, (0, 1): 0.4, (1, 0): -0.5, (1, 1): 1.0}
    score = {name: {1: 1 - q, 0: -q} for name, q in p.items()}  # of the logit of act 1
    gradient = dict.fromkeys(p, 0.0)
    pairs = list(pay)
    for acts in itertools.product(pairs, repeat=3):
        chance = np.prod([(p["a"] if a else 1 - p["a"]) * (p["b"] if b else 1 - p["b"]) for a, b in acts])
        found = counterfactual(bandit(acts, pay), against=against).tolist()
        for row, (name, act) in enumerate((name, act) for pair in acts for name, act in zip("ab", pair, strict=True)):
            gradient[name] += float(chance) * found[row] * score[name][act] / 3
    gain_a = 0.6 * (pay[1, 1] - pay[0, 1]) + 0.4 * (pay[1, 0] - pay[0, 0])
    gain_b = 0.3 * (pay[1, 1] - pay[1, 0]) + 0.7 * (pay[0, 1] - pay[0, 0])
    true = {"a": 0.3 * 0.7 * gain_a, "b": 0.6 * 0.4 * gain_b}
    if against == "all":
        assert gradient == pytest.approx({name: value * 2 / 3 for name, value in true.items()}, abs=1e-6)
    for name, value in true.items():
        assert gradient[name] * value > 0


@quick
@given(tables())
def test_against_others(table: StepTable) -> None:  # rule 13
    peers, alike = (table.key("group", "agent", "state_key", *more) for more in ((), ("action_key",)))
    count = [torch.bincount(key.codes)[key.codes].double() for key in (peers, alike)]
    rest = 1 - count[1] / count[0]
    assert close(rest * counterfactual(table, against="others"), counterfactual(table).double())


@quick
@given(tables())
def test_where_nobody_acted_otherwise(table: StepTable) -> None:  # rule 14
    alike = table.replace(action_key=["go"] * len(table))
    for against in ("all", "others"):
        assert close(counterfactual(alike, against=against), [0.0] * len(table))  # type: ignore[arg-type]


@quick
@given(tables())
def test_a_share_of_it(table: StepTable) -> None:  # rule 15
    assert torch.equal(counterfactual(table, share=0.0), table["reward"])
    half = counterfactual(table, share=0.5)
    assert close(half, (counterfactual(table) + table["reward"]) / 2)


def test_a_replay() -> None:  # rules 16, 17
    nan = float("nan")
    table = team(reward=[0, 1, 0, 0], without=[0.25, 1.0, 0.0, 0.5])
    assert close(counterfactual(table, against="replay"), [0.75, 0.0, 0.0, -0.5])
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*not played again without `solve`"):
        counterfactual(table.replace(without=[0.25, 1.0, 0.0, nan]), against="replay")
    with pytest.raises(MissingColumn, match="without"):
        counterfactual(team(), against="replay")


# ---- all --------------------------------------------------------------------------------------------------
EACH: dict[str, Callable[[StepTable], Tensor]] = {
    "role_mix": role_mix,
    "role_mix-mean": lambda table: role_mix(table, pool="mean", own="process", team="outcome"),
    "shapley": shapley_credit,
    "counterfactual": counterfactual,
    "counterfactual-others": lambda table: counterfactual(table, against="others"),
    "counterfactual-replay": lambda table: counterfactual(
        table.replace(without=total_return(table, by=OWN)), against="replay"
    ),
}


@pytest.mark.parametrize("name", EACH)
@few
@given(table=tables(), seed=st.integers(0, 10**6))
def test_padding_and_order(name: str, table: StepTable, seed: int) -> None:  # rule 18
    part, order = EACH[name], shuffled(table, seed)
    plain = part(table)
    assert close(part(table.take(order)), plain[order])
    padded = table.take(torch.cat([torch.arange(0, len(table), 2), torch.arange(len(table))]))
    extra = len(padded) - len(table)
    weight = torch.ones(len(padded))
    weight[:extra] = 0
    found = part(padded.replace(weight=weight, reward=torch.where(weight > 0, padded["reward"], 1e3)))
    assert close(found[extra:], plain) and not found[:extra].any()
