"""Intervals for success rates, returns and learning curves, computed by scipy.

Everything is deterministic: a bootstrap takes a seed and gives the same interval each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from palaestra.errors import InvalidData

METHOD = "BCa"  # of every bootstrap; comparisons name it

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
    found = stats.binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    return Interval(value=successes / n, low=float(found.low), high=float(found.high), level=level)


# ---- means ------------------------------------------------------------------------------------------------
def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """BCa bootstrap of the mean: bias-corrected and accelerated, so that it follows skewed values (Efron 1987).

    Fewer than three values, or values that are all equal, give no such interval. The bounds are then the smallest and
    the largest value. With few values it is too narrow; look at `t_interval` too.

    Args:
        values: (n,), n > 0; one value gives an interval without width.
        level: in (0, 1). Higher: wider. Usual: 0.95.
        resamples: Higher: smoother bounds, slower. Usual: 2000 to 50000.
    """
    sample = _sample(values, where="bootstrap_interval")
    low, high = _bca(sample[None], level=level, resamples=resamples, seed=seed)
    return Interval(value=float(sample.mean()), low=float(low[0]), high=float(high[0]), level=level)


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
    """Lower and upper bound of the mean curve at each point (BCa), whole curves drawn with replacement.

    Where a point has fewer than three values, or equal ones, the bounds are the smallest and the largest.

    Args: curves: (seeds, points). Returns: two arrays (points,).
    """
    return _bca(np.asarray(curves, np.float64).T, level=level, resamples=resamples, seed=seed)


def _bca(
    table: NDArray[np.float64], *, level: float, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of the mean of each row of a table (rows, values); the same draws for all rows.

    Returns: two arrays (rows,); the smallest and the largest value of a row where the interval is not defined.
    """
    low, high = table.min(axis=1), table.max(axis=1)
    varied = np.flatnonzero(low < high)
    if table.shape[1] >= 3 and len(varied):
        found = stats.bootstrap(
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
    """Student's interval for the mean, for few seeds: mean ± t · s / √n with n − 1 degrees of freedom.

    Exact for normal values. Raises: InvalidData, for fewer than two values.
    """
    sample = _sample(values, where="t_interval")
    if len(sample) < 2:
        raise InvalidData(where="t_interval", what="one value says nothing about spread.", remedy="Run more seeds.")
    mean = float(sample.mean())
    reach = float(stats.t.ppf((1 + level) / 2, len(sample) - 1)) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
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
