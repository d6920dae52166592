"""Intervals for success rates, returns and learning curves, computed by scipy.

The same seed always gives the same bootstrap interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from palaestra.errors import InvalidData

METHOD = "BCa"  # of every bootstrap; comparisons report it

_CHUNK = 4_000_000  # most numbers drawn at once, which limits the memory of a bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with two bounds. `level` is the share of such intervals that contain the true value."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def excludes(self, point: float) -> bool:
        """Whether `point` is outside of the bounds."""
        return point < self.low or point > self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


# ---- proportions ------------------------------------------------------------------------------------------
def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion. It is reliable near 0 and 1 and for small n.

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),   p = successes / n

    Args:
        level: in (0, 1). Higher: wider. Usual: 0.95.

    Raises: InvalidData, unless 0 ≤ successes ≤ n and n > 0.

    >>> print(wilson_interval(8, 10))
    0.800 [0.490, 0.943]
    """
    if not 0 <= successes <= n or n == 0:
        raise InvalidData(where="wilson_interval", what=f"{successes} successes of {n} are not a proportion.")
    found = scipy.stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    return Interval(value=successes / n, low=float(found.low), high=float(found.high), level=level)


def task_interval(scores: ArrayLike, *, draws: int, level: float = 0.95) -> Interval:
    """Interval of a mean of scores in [0, 1], one for each task, where a score is itself a mean over draws of its task.

    It is Wilson's interval with the number of independent draws that would vary as much as the scores of the tasks do,
    p(1 − p) / (s² / tasks), which is between the number of tasks and that of all draws. The normal quantile is replaced
    by Student's with tasks − 1 degrees of freedom (Korn and Graubard 1998; Dean and Pagano 2015). So draws of one task
    that all agree count as one draw, and a score of 1 in every task does not give an interval of width 0. With one
    draw of each task it is `wilson_interval`.

    Args:
        scores: (tasks,), tasks > 0, such as the share of successes or pass@k of each task.
        draws: independent draws of each task. Higher: a narrower interval, if the draws of a task differ.
        level: in (0, 1). Higher: wider. Usual: 0.95.

    Raises: InvalidData, for a score outside of [0, 1], or draws below 1.

    >>> print(task_interval([1, 1, 0, 0.5], draws=4))
    0.625 [0.118, 0.954]
    """
    sample = _sample(scores, where="task_interval")
    if sample.min() < 0 or sample.max() > 1 or draws < 1:
        raise InvalidData(where="task_interval", what=f"scores from {sample.min()} to {sample.max()}, {draws} draws.")
    tasks, p = len(sample), float(sample.mean())
    size = float(tasks)
    if draws > 1 and tasks > 1 and 0 < p < 1:
        spread = float(sample.var(ddof=1)) / tasks
        size = min(max(p * (1 - p) / spread, size), size * draws) if spread > 0 else size * draws
    law = scipy.stats.t(tasks - 1) if size > tasks else scipy.stats.norm
    quantile = float(law.ppf((1 + level) / 2))
    center = (p + quantile**2 / (2 * size)) / (1 + quantile**2 / size)
    reach = quantile * math.sqrt(p * (1 - p) / size + quantile**2 / (4 * size**2)) / (1 + quantile**2 / size)
    return Interval(value=p, low=max(center - reach, 0.0), high=min(center + reach, 1.0), level=level)


def pass_at(k: int, successes: ArrayLike, samples: int) -> NDArray[np.float64]:
    """For each task, the chance that at least one of k samples succeeds, without bias (Chen et al. 2021).

        1 − C(n − c, k) / C(n, k)   for c successes in n samples

    Args:
        k: 1 ≤ k ≤ samples. successes: (tasks,), whole numbers from 0 to samples.

    Returns: (tasks,). Raises: InvalidData, for another k.

    >>> pass_at(2, [0, 1, 4], 4)
    array([0. , 0.5, 1. ])
    """
    if not 1 <= k <= samples:
        raise InvalidData(where="pass_at", what=f"k is {k}, but there are {samples} samples of each task.")
    failed = samples - np.asarray(successes, np.int64)
    tries = np.arange(k)
    # C(n − c, k) / C(n, k) as a product, so that nothing overflows.
    return 1.0 - np.prod(np.clip(failed[:, None] - tries, 0, None) / (samples - tries), axis=1)


# ---- means ------------------------------------------------------------------------------------------------
def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Bias-corrected and accelerated (BCa) bootstrap interval of the mean, which suits skewed values (Efron 1987).

    It is not defined for fewer than three values or for equal values. The bounds are then the smallest and the largest
    value. With few values the interval is too narrow, so look at `t_interval` too.

    Args:
        values: (n,), n > 0.
        level: in (0, 1). Higher: wider. Usual: 0.95.
        resamples: Higher: smoother bounds, slower. Usual: 2000 to 50000.
    """
    sample = _sample(values, where="bootstrap_interval")
    low, high = _bca(sample[None], level=level, resamples=resamples, seed=seed)
    return Interval(value=float(sample.mean()), low=float(low[0]), high=float(high[0]), level=level)


def paired_bootstrap(
    values: ArrayLike, reference: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Bootstrap interval of the mean of values − reference. Pairs, such as values of one seed, are drawn together.

    Raises: InvalidData, if the two have different lengths.
    """
    first, second = _sample(values, where="paired_bootstrap"), _sample(reference, where="paired_bootstrap")
    if len(first) != len(second):
        raise InvalidData(where="paired_bootstrap", what=f"{len(first)} values and {len(second)} do not form pairs.")
    return bootstrap_interval(first - second, level=level, resamples=resamples, seed=seed)


def mean_band(
    curves: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bound of the mean curve at each point, by a BCa bootstrap that draws whole curves.

    At a point with fewer than three values or with equal values, the bounds are the smallest and the largest value.

    Args: curves: (seeds, points). Returns: two arrays (points,).
    """
    return _bca(np.asarray(curves, np.float64).T, level=level, resamples=resamples, seed=seed)


def _bca(
    table: NDArray[np.float64], *, level: float, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the mean of each row of a table (rows, values). All rows use the same draws.

    Returns: two arrays (rows,). If the interval of a row is not defined, they have its smallest and largest value.
    """
    low, high = table.min(axis=1), table.max(axis=1)
    varied = np.flatnonzero(low < high)
    if table.shape[1] >= 3 and len(varied):
        found = scipy.stats.bootstrap(
            (table[varied],),
            np.mean,
            axis=1,
            confidence_level=level,
            n_resamples=resamples,
            batch=max(1, _CHUNK // table.size),
            method=METHOD,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        known = np.isfinite(found.low) & np.isfinite(found.high)
        low[varied[known]], high[varied[known]] = found.low[known], found.high[known]
    return low, high


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student's interval for the mean: mean ± t · s / √n with n − 1 degrees of freedom. Use it with few seeds.

    It is exact for normally distributed values.

    Raises: InvalidData, for fewer than two values.
    """
    sample = _sample(values, where="t_interval")
    if len(sample) < 2:
        raise InvalidData(where="t_interval", what="one value has no spread.", remedy="Run more seeds.")
    mean = float(sample.mean())
    reach = (
        float(scipy.stats.t.ppf((1 + level) / 2, len(sample) - 1)) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    )
    return Interval(value=mean, low=mean - reach, high=mean + reach, level=level)


# ---- learning curves --------------------------------------------------------------------------------------
def area_under_curve(x: ArrayLike, y: ArrayLike) -> float:
    """Mean height of a curve over its width, by trapezoids. It is high if learning is fast and ends high.

    Args: x: ascending (n,), n > 0; y: (n,). A single point gives its height.
    """
    across, height = _sample(x, where="area_under_curve"), _sample(y, where="area_under_curve")
    width = across[-1] - across[0]
    return float(np.trapezoid(height, across) / width) if width > 0 else float(height[-1])


# ---- shared -----------------------------------------------------------------------------------------------
def _sample(values: ArrayLike, *, where: str) -> NDArray[np.float64]:
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or len(sample) == 0:
        raise InvalidData(where=where, what=f"it needs a list of at least one number, found the shape {sample.shape}.")
    if not np.isfinite(sample).all():
        bad = int(np.flatnonzero(~np.isfinite(sample))[0])
        raise InvalidData(where=where, what=f"value {bad} is {sample[bad]}.", remedy="Leave it out, and report that.")
    return sample
