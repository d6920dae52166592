"""The stages equal plain loops: (1) returns and rewards to go, by row, by turn and by token; (2) lambda returns over
rows and tokens, with ends; (3) baselines and scales over peers, with every unit; (4) whitening, pooling, modulation;
(5) half weights weigh statistics but not returns; (6) a chain without an end is refused, or ends with its last V;
(7) returns that are equal but for the rounding of their sums have advantage 0, and small differences stay.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import lambda_return, pool, reward_to_go, standardize, total_return, whiten
from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.systems.empg import modulate
from tests.parts.tables import close, quick, tables


def chains(table: StepTable, *names: str) -> list[list[int]]:
    """Rows of each set in time."""
    found: dict[Any, list[int]] = defaultdict(list)
    for row in sorted(range(len(table)), key=lambda r: int(table["turn"][r])):
        found[tuple(int(table[name][row]) for name in names)].append(row)
    return list(found.values())


def token_chains(table: StepTable, *names: str) -> list[list[int]]:
    """Tokens of each set in time."""
    pieces = torch.arange(table.tokens).split(table["token_count"].tolist())
    return [[int(t) for row in chain for t in pieces[row]] for chain in chains(table, *names)]


def to_go(rewards: list[float], gamma: float) -> list[float]:
    out, after = [], 0.0
    for reward in reversed(rewards):
        after = reward + gamma * after
        out.append(after)
    return out[::-1]


@quick
@given(tables(), st.sampled_from([1.0, 0.9]))
def test_rewards_to_go(table: StepTable, gamma: float) -> None:  # rule 1
    rows, whole = reward_to_go(table, gamma=gamma), total_return(table)
    for chain in chains(table, "trajectory"):
        own = table["reward"][chain].tolist()
        assert close(rows[chain], to_go(own, gamma))
        assert close(whole[chain], [sum(own)] * len(own))
    agents = reward_to_go(table, gamma=gamma, by=("trajectory", "agent"))
    for chain in chains(table, "trajectory", "agent"):
        assert close(agents[chain], to_go(table["reward"][chain].tolist(), gamma))
    assert torch.equal(reward_to_go(table, gamma=gamma, clock="turn"), rows), "turns are rows here"


@quick
@given(tables(), st.sampled_from([1.0, 0.9]))
def test_tokens_to_go(table: StepTable, gamma: float) -> None:  # rule 1
    last = table["token_count"].cumsum(0) - 1
    rewards = torch.zeros(table.tokens)
    rewards[last] = table["reward"]
    found = reward_to_go(table, gamma=gamma, level="token")
    for chain in token_chains(table, "trajectory"):
        assert close(found[chain], to_go(rewards[chain].tolist(), gamma))


def test_turns_are_shared() -> None:  # rule 1
    table = StepTable(group=[0] * 5, trajectory=[0] * 5, agent=list("abaab"), turn=[0, 0, 2, 5, 5],
                      reward=[1.0, 2.0, 4.0, 8.0, 16.0])  # fmt: skip
    late = 24.0
    middle = 4 + late / 8
    assert close(reward_to_go(table, gamma=0.5, clock="turn"), [3 + middle / 4, 3 + middle / 4, middle, late, late])


@pytest.mark.parametrize("level", ["row", "token"])
@quick
@given(table=tables())
def test_lambda_returns(level: Any, table: StepTable) -> None:  # rule 2
    gamma, lam, inner = 0.9, 0.8, 0.7
    found = lambda_return(table, gamma=gamma, lam=lam, level=level, gamma_in=inner)
    row_of = list(range(len(table))) if level == "row" else table.token_row.tolist()
    value = table["row_value" if level == "row" else "value_old"].tolist()
    for chain in (chains if level == "row" else token_chains)(table, "trajectory", "agent"):
        after = 0.0
        for place in range(len(chain) - 1, -1, -1):
            unit, row = chain[place], row_of[chain[place]]
            ends = place + 1 == len(chain)
            closes = ends or row_of[chain[place + 1]] != row
            discount = gamma if closes or level == "row" else inner
            end = float(table["bootstrap_value"][row]) if bool(table["truncated"][row]) else 0.0
            following = end if ends else value[chain[place + 1]]
            reward = float(table["reward"][row]) if closes else 0.0
            delta = reward + discount * following - value[unit]
            after = delta + (0.0 if ends else discount * lam * after)
            assert float(found.advantage[unit]) == pytest.approx(after, abs=1e-5)
            assert float(found.target[unit]) == pytest.approx(after + value[unit], abs=1e-5)


@pytest.mark.parametrize("level", ["row", "token"])
@quick
@given(table=tables())
def test_open_ends(level: Any, table: StepTable) -> None:  # rule 6
    ends = table["terminated"] | table["truncated"]
    opened = ends & (table["trajectory"] % 2 == 0)
    table = table.replace(terminated=table["terminated"] & ~opened, truncated=table["truncated"] & ~opened)
    own = table["row_value"] if level == "row" else table["value_old"][table["token_count"].cumsum(0) - 1]
    cut = table.replace(
        truncated=table["truncated"] | opened, bootstrap_value=torch.where(opened, own, table["bootstrap_value"])
    )
    found, expected = (lambda_return(t, gamma=0.9, lam=0.8, level=level, open_end="last_value") for t in (table, cut))
    assert torch.equal(found.advantage, expected.advantage) and torch.equal(found.target, expected.target)
    with pytest.raises(InvalidData, match="neither terminated nor truncated"):
        lambda_return(table, gamma=0.9, lam=0.8, level=level)


UNITS = ["row", "trajectory", "token", "agent"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("scale", ["none", "std"])
@quick
@given(table=tables())
def test_standardize(unit: str, scale: Any, table: StepTable) -> None:  # rule 3
    values = total_return(table)
    found = standardize(values, by=table.key("group"), unit=table.unit(unit), scale=scale)
    for rows in chains(table, "group"):
        units: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            units[row if unit in ("row", "token") else int(table[unit][row])].append(row)
        x = [statistics.fmean(values[members].tolist()) for members in units.values()]
        if unit == "token":
            x = [float(values[row]) for row in rows for _ in range(int(table["token_count"][row]))]
        flat = len(units) == 1 or (min(x) == max(x) and len(set(values[rows].tolist())) == 1)
        std = statistics.stdev(x) if len(x) > 1 else 0.0
        flat = flat or (scale == "std" and std < 1e-12)
        for row in rows:
            expected = (float(values[row]) - statistics.fmean(x)) / (std + 1e-6 if scale == "std" else 1.0)
            assert float(found[row]) == pytest.approx(0.0 if flat else expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.25])
def test_nothing_is_divided_by_nothing(weight: float) -> None:  # rule 3
    # Two trajectories of one mean, whose rows differ; two rows that weigh no more than one.
    table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x", "y"] * 2, turn=[0, 1] * 2,
                      reward=[0.0, 1.0, 0.0, 1.0], row_weight=[weight] * 4)  # fmt: skip
    key, own = table.key("group"), table.unit("trajectory")
    assert standardize(table["reward"], by=key, unit=own, scale="std").tolist() == [0.0] * 4
    assert standardize(table["reward"], by=key, unit=own, scale="none").tolist() == [-0.5, 0.5, -0.5, 0.5]
    for options in ({"scale": "std"}, {"center": "leave_one_out"}):
        lone = standardize(table["reward"], by=table.key("trajectory"), **options)  # type: ignore[arg-type]
        assert float(lone.abs().max()) <= (0.0 if weight <= 0.5 else 1.0)


def test_switches() -> None:  # rule 3
    table = StepTable(group=[0, 0, 1], trajectory=[0, 1, 2], agent=["x"] * 3, turn=[0] * 3, reward=[0.3, 0.3, 5.0])
    key, values = table.key("group"), table["reward"]
    assert standardize(values, by=key).tolist() == [0.0, 0.0, 0.0]
    assert standardize(values, by=key, singleton="raw").tolist() == [0.0, 0.0, 5.0]
    assert standardize(values, by=key, center="none", singleton="raw").tolist() == values.tolist()
    assert math.isclose(float(standardize(values, by=key, scale="std", zero_variance="keep")[0]), 0.0, abs_tol=1e-6)


@quick
@given(tables())
def test_whiten_pool_modulate(table: StepTable) -> None:  # rule 4
    x = table["reward"]
    white = whiten(x).double()
    assert close(white, torch.zeros(len(x))) if len(set(x.tolist())) == 1 else close(white.var(), 1.0, tolerance=1e-3)
    half = torch.arange(len(x)) % 2 == 0
    if int(half.sum()) > 1:
        assert torch.equal(whiten(x, weight=half.float())[half], whiten(x[half]))
        assert bool((whiten(x, weight=half.float())[~half] == 0).all())
    mean = pool(x, by=table.key("group", "state_key"))
    for rows in chains(table, "group", "state_key"):
        assert close(mean[rows], [statistics.fmean(x[rows].tolist())] * len(rows))
    assert close(modulate(x, factor=2.0, bonus=mean), 2 * x + mean)
    assert torch.equal(modulate(x), x)


def test_whiten_refuses_one() -> None:  # rule 4
    with pytest.raises(InvalidData, match="1 units cannot be whitened"):
        whiten(torch.ones(3), weight=torch.tensor([0.0, 1.0, 0.0]))
    assert whiten(torch.full((3,), 0.1)).tolist() == [0.0, 0.0, 0.0]


def test_half_weights() -> None:  # rule 5
    table = StepTable(group=[0, 0, 0], trajectory=[0, 1, 2], agent=["x"] * 3, turn=[0] * 3, reward=[1.0, 0.0, 0.0],
                      row_weight=[1.0, 0.5, 0.5])  # fmt: skip
    assert total_return(table).tolist() == [1.0, 0.0, 0.0]
    assert close(standardize(table["reward"], by=table.key("group")), [0.5, -0.5, -0.5])


def group_of(*rewards: list[float]) -> StepTable:
    """One group; each list is a trajectory, one reward a row."""
    return StepTable(
        group=["g"] * sum(map(len, rewards)),
        trajectory=[i for i, own in enumerate(rewards) for _ in own],
        agent=["x"] * sum(map(len, rewards)),
        turn=[turn for own in rewards for turn in range(len(own))],
        reward=[r for own in rewards for r in own],
    )


def advantages_of(*rewards: list[float]) -> list[torch.Tensor]:
    """By mean, by the others' mean, with the deviation of one delta degree of freedom and of none; and whitened."""
    table = group_of(*rewards)
    options: list[dict[str, Any]] = [{}, {"center": "leave_one_out"}, {"scale": "std"}, {"scale": "std", "ddof": 0}]
    returns, key, unit = total_return(table), table.key("group"), table.unit("trajectory")
    return [*(standardize(returns, by=key, unit=unit, **chosen) for chosen in options), whiten(returns)]


EQUAL = {
    "three thirds": ([0.3] * 3, [0.9]),
    "long": ([0.05] * 2400, [0.15] * 800),
    "negative": ([-0.1] * 7, [-0.7], [-0.35, -0.35]),
    "to nothing": ([0.3, 0.3, 0.3, -0.9], [0.0]),
    "prize and price": ([1.0, -0.1], [1.0, -0.05, -0.05], [0.3] * 3),
    "tiny": ([1e-9] * 3, [3e-9]),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_returns_of_different_sums(name: str) -> None:  # rule 7
    assert [found.abs().max() for found in advantages_of(*EQUAL[name])] == [0.0] * 5


@quick
@given(st.integers(0, 10**6))
def test_random_partitions_of_one_return(seed: int) -> None:  # rule 7
    dice = random.Random(seed)
    size, sign = dice.choice([0.01, 0.1, 0.3, 1 / 3, 1.0, 7.7, 1000.0]), dice.choice([-1, 1])
    parts = [[dice.randint(1, 9) for _ in range(dice.randint(1, 60))] for _ in range(dice.randint(2, 6))]
    rewards = [[sign * size * part / sum(own) for part in own] for own in parts]
    assert [found.abs().max() for found in advantages_of(*rewards)] == [0.0] * 5


@pytest.mark.parametrize(
    ("one", "other"), [(1.0, 1.001), (1000.0, 1000.1), (1.0, 1.00001), (0.0, 1e-6), (1e-6, 1.1e-6), (-1.0, 1.0)]
)
def test_small_differences_stay(one: float, other: float) -> None:  # rule 7
    centered, alone, sample, population, white = advantages_of([one], [one], [other], [other])
    half = (other - one) / 2
    assert centered.tolist() == pytest.approx([-half, -half, half, half], rel=0.02)
    assert alone.tolist() == pytest.approx([-half * 4 / 3] * 2 + [half * 4 / 3] * 2, rel=0.02)
    assert float(population[3]) == pytest.approx(half / (half + 1e-6), rel=0.02)
    assert 0 < float(sample[3]) < float(population[3]) and float(white[3]) > 0


def test_one_of_many_that_differs_a_little_stays() -> None:  # rule 7
    found = advantages_of(*[[1.0]] * 999, [1.00001])
    assert all(float(each[-1]) > 0 > float(each[0]) for each in found)
