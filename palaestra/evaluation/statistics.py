"""Statistics for success rates, returns and learning curves: every estimate comes with its interval.

Everything is deterministic: a bootstrap takes a seed and gives the same interval each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit  # quantiles of Student's distribution

from palaestra.errors import InvalidData

Statistic = Callable[..., NDArray[np.float64]]  # called as statistic(values, axis=-1)

_CHUNK = 4_000_000  # numbers drawn at once, which bounds the memory of a bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate between two bounds; `level` is the share of such intervals that hold the truth."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def excludes(self, point: float) -> bool:
        """Whether `point` is outside."""
        return point < self.low or point > self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


# ---- proportions ------------------------------------------------------------------------------------------
def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion; honest at 0, at 1 and for small n.

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),   p = successes / n

    Args:
        level: in (0, 1). Higher: wider. Usual: 0.95.

    Raises: InvalidData, unless 0 ≤ successes ≤ n and n > 0.

    >>> print(wilson_interval(8, 10))
    0.800 [0.490, 0.943]
    """
    if not 0 <= successes <= n or n == 0:
        raise InvalidData(where="wilson_interval", what=f"{successes} successes of {n} give no proportion.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the ends the bound is exact; rounding must not push it past the estimate.
    low = 0.0 if successes == 0 else center - reach
    high = 1.0 if successes == n else center + reach
    return Interval(value=p, low=low, high=high, level=level)


# ---- means and other statistics -----------------------------------------------------------------------------
def bootstrap_interval(
    values: ArrayLike,
    *,
    level: float = 0.95,
    statistic: Statistic = np.mean,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap: the statistic of samples drawn from `values` with replacement.

    With few values it is too narrow (five normal values, 95 %: it holds the mean about 84 % of the time);
    look at `t_interval` too.

    Args:
        values: (n,), n > 0; one value gives an interval without width.
        statistic: takes an array and `axis`; `numpy.mean`, `numpy.median`.
        resamples: Higher: smoother bounds, slower. Usual: 2000 to 50000.
    """
    sample = _sample(values, where="bootstrap_interval")
    generator = np.random.default_rng(seed)
    most = max(1, _CHUNK // len(sample))
    drawn = [
        statistic(sample[generator.integers(0, len(sample), (min(most, resamples - done), len(sample)))], axis=-1)
        for done in range(0, resamples, most)
    ]
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=float(statistic(sample, axis=-1)), low=float(low), high=float(high), level=level)


def paired_bootstrap(
    values: ArrayLike, reference: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of the differences values − reference, pair by pair (same seed, same task), pairs drawn together.

    Raises: InvalidData, if the two have different lengths.
    """
    first, second = _sample(values, where="paired_bootstrap"), _sample(reference, where="paired_bootstrap")
    if len(first) != len(second):
        raise InvalidData(where="paired_bootstrap", what=f"{len(first)} values and {len(second)} are no pairs.")
    return bootstrap_interval(first - second, level=level, resamples=resamples, seed=seed)


def mean_band(
    curves: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bound of the mean curve at each point, whole curves drawn with replacement.

    Args: curves: (seeds, points). Returns: two arrays (points,).
    """
    table = np.asarray(curves, np.float64)
    generator = np.random.default_rng(seed)
    # Each resample is a vector of how often a curve was drawn, so that its mean is one matrix product.
    counts = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), size=resamples)
    low, high = np.quantile(counts @ table / len(table), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student's interval for the mean, for few seeds: mean ± t · s / √n with n − 1 degrees of freedom.

    Exact for normal values. Raises: InvalidData, for fewer than two values.
    """
    sample = _sample(values, where="t_interval")
    if len(sample) < 2:
        raise InvalidData(where="t_interval", what="one value says nothing about spread.", remedy="Run more seeds.")
    mean = float(sample.mean())
    reach = float(stdtrit(len(sample) - 1, (1 + level) / 2)) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Interval(value=mean, low=mean - reach, high=mean + reach, level=level)


# ---- learning curves --------------------------------------------------------------------------------------
def area_under_curve(x: ArrayLike, y: ArrayLike) -> float:
    """Mean height of a curve over its width, by trapezoids: fast and good learners are high.

    Args: x: ascending (n,), n > 0; y: (n,). One point gives its own height.
    """
    across, height = _sample(x, where="area_under_curve"), _sample(y, where="area_under_curve")
    width = across[-1] - across[0]
    return float(np.trapezoid(height, across) / width) if width > 0 else float(height[-1])


# ---- shared -----------------------------------------------------------------------------------------------
def _sample(values: ArrayLike, *, where: str) -> NDArray[np.float64]:
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or len(sample) == 0:
        raise InvalidData(where=where, what=f"it needs a list of at least one number, found shape {sample.shape}.")
    if not np.isfinite(sample).all():
        bad = int(np.flatnonzero(~np.isfinite(sample))[0])
        raise InvalidData(where=where, what=f"value {bad} is {sample[bad]}.", remedy="Leave it out, and say so.")
    return sample
