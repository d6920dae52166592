"""What must hold for statistics:

(1) Wilson's interval has the published numbers, stays inside [0, 1], and covers about as often as it says;
(2) a bootstrap is deterministic, exact where it can be, close to theory for many values, and too narrow for few;
(3) Student's interval has the quantiles of the tables and covers as often as it says, also for three values;
(4) pairs: what all pairs share cancels;
(5) interquartile mean and stratified bootstrap as in arXiv 2108.13264;
(6) pass@k equals the count over all draws;
(7) curves: area, first crossing, censoring;
(8) no values, or values that are not finite, are refused.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.errors import InvalidData
from palaestra.evaluation.statistics import (
    Crossing,
    area_under_curve,
    bootstrap_interval,
    iqm,
    mean_band,
    paired_bootstrap,
    pass_at_k,
    steps_to_threshold,
    stratified_bootstrap,
    t_interval,
    t_quantile,
    wilson_interval,
)


# Newcombe (1998), Statistics in Medicine 17, table I, method 3.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_has_the_published_numbers(successes: int, n: int, low: float, high: float) -> None:  # rule 1
    found = wilson_interval(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    mirror = wilson_interval(n - successes, n)
    assert (1 - mirror.high, 1 - mirror.low) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_holds_its_estimate(counts: tuple[int, int], level: float) -> None:  # rule 1
    found = wilson_interval(*counts, level=level)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high


@pytest.mark.parametrize(("p", "n"), [(0.5, 20), (0.1, 30), (0.95, 256)])
def test_wilson_covers(p: float, n: int) -> None:  # rule 1, exactly: the sum over all outcomes
    chance = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    covered = sum(c for k, c in enumerate(chance) if not wilson_interval(k, n).excludes(p))
    assert 0.925 < covered < 0.985


def test_a_bootstrap_is_deterministic_and_depends_on_its_seed() -> None:  # rule 2
    values = np.random.default_rng(0).normal(size=30)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values)
    assert bootstrap_interval([2.0]) == bootstrap_interval([2.0, 2.0])


def test_a_bootstrap_of_two_values() -> None:  # rule 2: means 0, ½, 1 with chances ¼, ½, ¼
    found = bootstrap_interval([0.0, 1.0], level=0.4)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    assert (bootstrap_interval([0.0, 1.0]).low, bootstrap_interval([0.0, 1.0]).high) == (0.0, 1.0)


def test_many_values_agree_with_theory() -> None:  # rule 2
    values = np.random.default_rng(1).normal(size=4000)
    found = bootstrap_interval(values, resamples=4000)
    reach = 1.96 * values.std() / math.sqrt(4000)
    assert found.high - found.low == pytest.approx(2 * reach, rel=0.05)
    median = bootstrap_interval(values, statistic=np.median, resamples=2000)
    assert median.high - median.low == pytest.approx(2 * reach * math.sqrt(math.pi / 2), rel=0.15)


def test_coverage_of_few_values() -> None:  # rules 2 and 3
    generator = np.random.default_rng(2)
    samples = [generator.normal(size=5) for _ in range(1500)]
    bootstrap = np.mean([not bootstrap_interval(x, resamples=300, seed=k).excludes(0) for k, x in enumerate(samples)])
    student = np.mean([not t_interval(x).excludes(0) for x in samples])
    assert 0.80 < bootstrap < 0.88
    assert 0.935 < student < 0.965


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 4, 2.77645),
        (0.975, 9, 2.26216),
        (0.995, 30, 2.75000),
        (0.95, 120, 1.65765),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_of_the_tables(probability: float, freedom: int, quantile: float) -> None:  # rule 3
    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=6e-5)


def test_student_by_hand() -> None:  # rule 3: mean 2, s = 1, 4.30265 / √3
    found = t_interval([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)


def test_what_pairs_share_cancels() -> None:  # rule 4
    shared = np.random.default_rng(3).normal(size=8) * 100
    found = paired_bootstrap(shared + 0.5, shared)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))
    with pytest.raises(InvalidData, match="no pairs"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_interquartile_mean() -> None:  # rule 5
    assert iqm([100.0, 1, 2, 3, -50, 4, 2, 3]) == pytest.approx(2.5)  # 1 2 2 3 | 3 4 cut: 2 2 3 3
    assert iqm([1.0, 2.0, 9.0]) == pytest.approx(4.0)  # a quarter of three is none
    assert iqm([[0.0, 1, 1, 9], [4, 4, 4, 4]], axis=1).tolist() == [1.0, 4.0]


def test_strata_are_drawn_apart() -> None:  # rule 5
    tasks = np.arange(6.0) * 10
    same = stratified_bootstrap(np.tile(tasks, (4, 1)), statistic=np.mean)
    assert (same.value, same.low, same.high) == pytest.approx((25, 25, 25))  # tasks are never drawn, only runs
    noisy = np.tile(tasks, (4, 1)) + np.array([[-1.0], [1.0], [-1.0], [1.0]])
    found = stratified_bootstrap(noisy, statistic=np.mean, resamples=4000)
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(24), rel=0.15)  # 24 independent draws
    assert stratified_bootstrap(noisy).value == pytest.approx(iqm(noisy.reshape(-1)))


def test_a_band_is_the_bootstrap_of_each_point() -> None:  # rule 2
    curves = np.random.default_rng(4).normal(size=(6, 3))
    low, high = mean_band(curves)
    for k in range(3):
        point = bootstrap_interval(curves[:, k], seed=9)
        assert (low[k], high[k]) == pytest.approx((point.low, point.high), abs=0.06)


@pytest.mark.parametrize(("n", "correct", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 5, 2), (4, 4, 4)])
def test_pass_at_k_counts_draws(n: int, correct: int, k: int) -> None:  # rule 6
    draws = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, correct, k) == pytest.approx(np.mean([min(draw) < correct for draw in draws]))


def test_curves() -> None:  # rule 7
    assert area_under_curve([0, 1, 3], [0.0, 1.0, 1.0]) == pytest.approx(2.5 / 3)
    assert area_under_curve([7], [0.3]) == 0.3
    assert steps_to_threshold([0, 10, 20], [0.2, 0.6, 1.0], 0.5) == Crossing(pytest.approx(7.5), True)
    assert steps_to_threshold([5, 10], [0.9, 0.1], 0.5) == Crossing(5.0, True)
    assert steps_to_threshold([0, 10], [0.2, 0.4], 0.5) == Crossing(10.0, False)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [[1.0]]])
def test_bad_values_are_refused(values: list[float]) -> None:  # rule 8
    for statistic in (bootstrap_interval, t_interval):
        with pytest.raises(InvalidData):
            statistic(values)


def test_impossible_counts_are_refused() -> None:  # rule 8
    for call in (lambda: wilson_interval(0, 0), lambda: wilson_interval(3, 2), lambda: pass_at_k(3, 1, 4)):
        with pytest.raises(InvalidData):
            call()
    with pytest.raises(InvalidData, match="more seeds"):
        t_interval([1.0])
    with pytest.raises(InvalidData, match=r"\(runs, tasks\)"):
        stratified_bootstrap([1.0, 2.0])
