"""CANON.

1. For groups of even size, mu ½ and alpha 1 it is Dr. GRPO, bit for bit, whatever the metric.
2. It keeps the contract of estimators, for each metric and schedule.
3. For groups of even size and alpha 1 the sum over a group is 0; in odd groups the high half has one more trajectory.
4. Ties are ordered by the names of trajectories, not by the order of rows.
5. A trajectory alone gets 0; padding belongs to no half.
6. mu: by accuracy, by failures, and on a cosine that restarts; it is logged.
7. If the low-entropy half succeeds more often, it gets more than its own results alone give, and the other way round.
8. alpha below 1 shortens: of two equal halves the shorter one gets more.
9. Random halves depend on the iteration's seed and the trajectories, not on the order or the number of their rows.
10. Missing metrics, wrong options and groups without peers are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import segment_sum
from palaestra.data import Key, StepTable
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import dr_grpo
from palaestra.systems.canon import _halves, cosine
from palaestra.systems.canon import canon as canon_part
from palaestra.testing import check_estimator
from tests.messages import told
from tests.parts.tables import quick, shuffled, tables

METRICS = ("entropy", "length", "random")


def at(step: int = 0, seed: int = 0) -> Iteration:
    return Iteration({}, step, seed=seed, temperature=1.0, token_budget=64)


def canon(table: StepTable, *, step: int = 0, **options: Any) -> torch.Tensor:
    return canon_part(table, at(step), **options)


def answers(results: list[Any], entropy: list[Any], **columns: Any) -> StepTable:
    """One group, one row a trajectory."""
    names = [f"t{i}" for i in range(len(results))]
    base: dict[str, Any] = {
        "group": ["g"] * len(names),
        "trajectory": names,
        "agent": ["x"] * len(names),
        "turn": [0] * len(names),
        "reward": results,
        "row_entropy": entropy,
    }
    return StepTable(**{**base, **columns})


def even(table: StepTable) -> StepTable:
    """The same table without the last trajectory of each group of odd size."""
    labels, keep = table.labels("trajectory"), torch.ones(len(table), dtype=torch.bool)
    for group in range(len(table.labels("group"))):
        own = sorted({int(code) for code in table["trajectory"][table["group"] == group]}, key=lambda c: labels[c])
        if len(own) % 2:
            keep &= table["trajectory"] != own[-1]
    return table.take(keep.nonzero()[:, 0])


@pytest.mark.parametrize("metric", METRICS)
@quick
@given(table=tables())
def test_1_it_is_dr_grpo(metric: str, table: StepTable) -> None:
    table = even(table)
    assert torch.equal(canon(table, metric=metric), dr_grpo(table))


@pytest.mark.parametrize("options", [*({"metric": m} for m in METRICS), {"schedule": "accuracy"}, {"mu": 0.9}])
@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_2_contract(options: dict[str, Any], table: StepTable, seed: int) -> None:
    check_estimator(canon_part, table, order=shuffled(table, seed), **options)
    if options.get("alpha", 1) == 1:
        assert not canon(table.replace(reward=torch.zeros(len(table))), **options).any()


@quick
@given(table=tables(one_row=True), mu=st.sampled_from([0.0, 0.25, 1.0]))
def test_3_sums(table: StepTable, mu: float) -> None:
    table = even(table)
    assert bool((segment_sum(canon(table, mu=mu), by=table.key("group")).abs() < 1e-5).all())


def test_3_odd_groups() -> None:
    found = canon(answers([1, 0, 0], [0.1, 0.2, 0.3]), mu=1.0)  # low: the first alone
    assert found.tolist() == [1.0, -1.0, -1.0]


def test_4_ties() -> None:
    names = ["s/10", "s/9", "s/2", "s/1"]
    table = answers([1, 0, 0, 1], [0.5] * 4, trajectory=names)
    assert canon(table, mu=1.0).tolist() == [0.5, -0.5, -0.5, 0.5]  # low: s/1 and s/2
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(canon(table.take(order), mu=1.0), canon(table, mu=1.0)[order])


def test_5_lone_trajectories_and_padding() -> None:
    table = answers([1, 0, 5], [0.1, 0.2, 0.3], group=["g", "g", "h"])
    assert canon(table).tolist() == [0.5, -0.5, 0]
    padded = answers([1, 0, 900], [0.1, 0.2, float(0)], row_weight=[1.0, 1.0, 0.0])
    assert canon(padded).tolist() == [0.5, -0.5, 0]


def test_6_accuracy_is_the_weight() -> None:
    table = answers([1, 1, 1, 0], [0.4, 0.3, 0.2, 0.1], outcome=[1.0, 1.0, 1.0, 0.0])
    for schedule, mu in (("accuracy", 0.75), ("failure", 0.25)):
        iteration = at()
        assert torch.equal(canon_part(table, iteration, schedule=schedule), canon(table, mu=mu))
        assert iteration.metrics == {"canon/mu": mu}
    with told(InvalidData, "not an accuracy"):
        canon(table.replace(outcome=[1.0, float("nan"), 0.0, 0.0]), schedule="accuracy")


def test_6_the_cosine_restarts() -> None:
    curve: dict[str, Any] = {"low": 0.1, "high": 0.5}
    mu = [cosine(step, **curve, steps=150, warmup=30, cycles=3) for step in range(200)]
    assert mu[0] == 0.1 and mu[15] == pytest.approx(0.3) and mu[30] == mu[70] == mu[110] == 0.5
    assert mu[50] == pytest.approx(0.3) and mu[69] < 0.102 and mu[150:] == [0.1] * 50
    assert all(a > b for a, b in zip(mu[30:69], mu[31:70], strict=True))
    table = answers([1, 0], [0.2, 0.1])
    for schedule, expected in (("falling", [0.1, 0.5, 0.3, 0.1]), ("rising", [0.5, 0.1, 0.3, 0.5])):
        iterations = [at(step) for step in (0, 30, 50, 199)]
        for iteration in iterations:
            canon_part(table, iteration, schedule=schedule, **curve)
        assert [iteration.metrics["canon/mu"] for iteration in iterations] == pytest.approx(expected)


@pytest.mark.parametrize("better", ["low", "high"])
def test_7_it_follows_the_better_half(better: str) -> None:
    results = [1, 1, 1, 0, 1, 0, 0, 0]
    entropy = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8] if better == "low" else [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    table = answers(results, entropy)
    across, plain = canon(table, mu=1.0), dr_grpo(table)
    assert float(across[:4].mean()) > float(plain[:4].mean()) > 0 > float(plain[4:].mean()) > float(across[4:].mean())


def test_8_alpha_shortens() -> None:
    table = answers([1, 0, 1, 0], [0.0] * 4, token_count=[9, 8, 2, 1])
    found = canon(table, metric="length", alpha=0.8, mu=1.0)
    assert found.tolist() == pytest.approx([0.3, -0.5, 0.6, -0.4])
    assert canon(table, metric="length", mu=1.0).tolist() == pytest.approx([0.5, -0.5, 0.5, -0.5])


def test_9_random_halves() -> None:
    table = answers([1, 1, 1, 1, 0, 0, 0, 0], [0.0] * 8)
    found = canon(table, metric="random", mu=1.0)
    others = [
        canon(table.replace(trajectory=[f"{step}/{i}" for i in range(8)]), metric="random", mu=1.0) for step in range(9)
    ]
    assert any(not torch.equal(found, other) for other in others)
    order = torch.arange(8).flip(0)
    assert torch.equal(canon(table.take(order), metric="random", mu=1.0), found.flip(0))


@pytest.mark.slow
def test_9_a_long_trajectory_is_drawn_once() -> None:
    seeds = range(2000)
    rows = ["long"] * 8 + ["one", "two"]
    table = answers([0.0] * 7 + [1.0, 0.0, 0.0], [0.0] * 10, trajectory=rows, turn=[*range(8), 0, 0])
    # The low half of three is one trajectory. If it is "long", the others get −1 each; else they get −½ and 0.
    alone = [canon_part(table, at(seed=seed), metric="random", mu=1.0)[-2:].tolist() == [-1.0, -1.0] for seed in seeds]
    assert sum(alone) / len(seeds) == pytest.approx(1 / 3, abs=0.04)
    pair = table.take(torch.arange(9))
    key = pair.key("group", "trajectory")
    counts = Key(key.codes, key.size)
    groups = Key(torch.zeros(key.size, dtype=torch.int64), 1)
    low = [int(_halves(pair, counts, groups, metric="random", seed=seed)[0][key.codes[0]] == 0) for seed in seeds]
    assert sum(low) / len(seeds) == pytest.approx(0.5, abs=0.04)


def test_10_refusals() -> None:
    table = answers([1, 0], [0.2, 0.1])
    with pytest.raises(MissingColumn, match="no column `row_entropy`"):
        canon(table.replace(row_entropy=None))
    assert canon(table.replace(row_entropy=None), metric="length").tolist() == [0.5, -0.5]
    with pytest.raises(InvalidData, match="no group has two trajectories"):
        canon(answers([1, 0], [0.2, 0.1], group=["g", "h"]))
    for wrong in ({"mu": 1.5}, {"mu": -0.1}, {"alpha": 1.1}, {"metric": "mood"}, {"low": 2}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            canon(table, **wrong)
    with pytest.raises(RecipeError, match="random halves do not differ"):
        canon(table, metric="random", alpha=0.9)
    with pytest.raises(RecipeError, match="2 iterations after the warm-up"):
        canon(table, steps=32)
    with told(RecipeError, "0.7 to 0.6"):
        canon(table, low=0.7)
