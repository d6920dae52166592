"""What must hold for statistics:

(1) Wilson's interval has the published numbers, stays inside [0, 1], and covers about as often as it says;
(2) a bootstrap is deterministic, close to theory for many values, too narrow for few, and follows skewed values; where
    there is none, fewer than three values or equal ones, its bounds are the smallest and the largest value;
(3) Student's interval has the quantiles of the tables and covers as often as it says, also for three values;
(4) pairs: what all pairs share cancels;
(5) the area under a curve;
(6) several samples of a task: their interval treats the task as the unit and covers as often as it says, and pass@k has
    no bias;
(7) no values, or values that are not finite, are refused.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.errors import InvalidData
from palaestra.evaluation.statistics import (
    area_under_curve,
    bootstrap_interval,
    mean_band,
    paired_bootstrap,
    pass_at,
    t_interval,
    task_interval,
    wilson_interval,
)
from tests.messages import told


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


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([0.25], 0.25, 0.25), ([0.0, 1.0], 0.0, 1.0), ([0.5, 0.5, 0.5], 0.5, 0.5), ([0.1 + 0.2, 0.3, 0.3], 0.3, 0.3)],
)
def test_where_there_is_no_bootstrap(values: list[float], low: float, high: float) -> None:  # rule 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bootstrap_interval(values)
        band = mean_band(np.array([values, values]).T)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-15)
    assert np.array(band) == pytest.approx(np.array([[low] * 2, [high] * 2]), abs=1e-15)


def test_many_values_agree_with_theory() -> None:  # rule 2
    values = np.random.default_rng(1).normal(size=4000)
    found = bootstrap_interval(values, resamples=4000)
    reach = 1.96 * values.std() / math.sqrt(4000)
    assert found.high - found.low == pytest.approx(2 * reach, rel=0.05)


def test_a_bootstrap_follows_skewed_values() -> None:  # rule 2: DiCiccio and Efron (1996), the acceleration of a mean
    values = np.random.default_rng(7).exponential(size=60)
    skewness = np.mean((values - values.mean()) ** 3) / values.std() ** 3
    reach, shift = values.std() / math.sqrt(60), skewness / math.sqrt(60) / 6
    found = bootstrap_interval(values, resamples=40_000)
    # In units of `reach` the bounds are z + (2 z² + 1) · shift; those of a percentile bootstrap z + (z² − 1) · shift.
    for bound, z in ((found.low, -1.96), (found.high, 1.96)):
        assert (bound - values.mean()) / reach == pytest.approx(z + (2 * z * z + 1) * shift, abs=0.05)
        assert (z * z + 2) * shift > 0.15, "far from the percentiles"


def test_coverage_of_few_values() -> None:  # rules 2 and 3
    generator = np.random.default_rng(2)
    samples = [generator.normal(size=5) for _ in range(1500)]
    bootstrap = np.mean([not bootstrap_interval(x, resamples=300, seed=k).excludes(0) for k, x in enumerate(samples)])
    student = np.mean([not t_interval(x).excludes(0) for x in samples])
    assert 0.80 < bootstrap < 0.88
    assert 0.935 < student < 0.965


@pytest.mark.parametrize(
    ("level", "freedom", "quantile"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.95, 4, 2.77645), (0.99, 30, 2.75000), (0.9, 120, 1.65765)],
)
def test_quantiles_of_the_tables(level: float, freedom: int, quantile: float) -> None:  # rule 3
    values = np.arange(freedom + 1.0)
    found = t_interval(values, level=level)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert (found.high - found.value) / error == pytest.approx(quantile, abs=6e-5)


def test_student_by_hand() -> None:  # rule 3: mean 2, s = 1, 4.30265 / √3
    found = t_interval([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)


def test_what_pairs_share_cancels() -> None:  # rule 4
    shared = np.random.default_rng(3).normal(size=8) * 100
    found = paired_bootstrap(shared + 0.5, shared)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))
    with told(InvalidData, "pairs"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_a_band_is_the_bootstrap_of_each_point() -> None:  # rule 2
    curves = np.random.default_rng(4).normal(size=(6, 3))
    low, high = mean_band(curves)
    for k in range(3):
        point = bootstrap_interval(curves[:, k], seed=9)
        assert (low[k], high[k]) == pytest.approx((point.low, point.high), abs=0.06)


def test_curves() -> None:  # rule 5
    assert area_under_curve([0, 1, 3], [0.0, 1.0, 1.0]) == pytest.approx(2.5 / 3)
    assert area_under_curve([7], [0.3]) == 0.3


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [[1.0]]])
def test_bad_values_are_refused(values: list[float]) -> None:  # rule 6
    for statistic in (bootstrap_interval, t_interval):
        with pytest.raises(InvalidData):
            statistic(values)


def test_impossible_counts_are_refused() -> None:  # rule 6
    for call in (lambda: wilson_interval(0, 0), lambda: wilson_interval(3, 2)):
        with pytest.raises(InvalidData):
            call()
    with pytest.raises(InvalidData, match="more seeds"):
        t_interval([1.0])


@pytest.mark.parametrize(("tasks", "draws"), [(8, 4), (32, 4), (64, 8)])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.3, 0.7), (5, 1), (50, 50)])
def test_task_intervals_cover(tasks: int, draws: int, a: float, b: float) -> None:
    """The interval of a mean over draws of tasks contains the true mean about as often as it says."""
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        found = task_interval(draw.binomial(draws, draw.beta(a, b, tasks)) / draws, draws=draws)
        hits += found.low <= a / (a + b) <= found.high
    assert hits / 400 > 0.92
    narrow = wilson_interval(round(tasks * draws * a / (a + b)), tasks * draws)
    one_task_one_draw = task_interval([1.0] * (tasks // 2) + [0.0] * (tasks // 2), draws=draws)
    assert one_task_one_draw.high - one_task_one_draw.low > narrow.high - narrow.low
    assert task_interval([1.0] * tasks, draws=draws).low == pytest.approx(wilson_interval(tasks, tasks).low)


@pytest.mark.parametrize("n", [1, 5, 9])
def test_pass_at_k_without_bias(n: int) -> None:
    """pass@k is the share of all choices of k samples that have a success, for every number of successes."""
    for successes in range(n + 1):
        flags = [1] * successes + [0] * (n - successes)
        for k in range(1, n + 1):
            choices = list(itertools.combinations(flags, k))
            expected = sum(any(one) for one in choices) / len(choices)
            assert pass_at(k, [successes], n)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "call",
    [lambda: pass_at(3, [1], 2), lambda: pass_at(0, [1], 2), lambda: task_interval([1.5], draws=2),
     lambda: task_interval([0.5], draws=0), lambda: task_interval([], draws=2)],
)  # fmt: skip
def test_bad_samples(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidData):
        call()
