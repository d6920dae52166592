"""Compares arms: learning curves of several methods and seeds, at an equal budget, with intervals and verdicts."""

from __future__ import annotations

import io
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

import palaestra
from palaestra.errors import InvalidData, RunFolderError, UnknownName
from palaestra.evaluation.runs import Arm, Array, Run, load_arm
from palaestra.evaluation.statistics import (
    METHOD,
    Interval,
    area_under_curve,
    bootstrap_interval,
    mean_band,
    paired_bootstrap,
    t_interval,
)
from palaestra.evaluation.tables import cell
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES

__all__ = ["Arm", "Comparison", "Run", "compare", "difference", "load_arm", "recomputed"]

Verdict = Literal["higher", "lower", "no difference seen", "too few seeds"]

SCHEMA = "palaestra.comparison/1"


# ---- comparison -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number for each seed, and their mean with a bootstrap interval."""

    per_seed: dict[int, float]
    mean: Interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmResult:
    """The result of one arm at the budget.

    Attributes:
        runs: names of the run folders.
        final: value of the curve at the budget.
        area: mean height of the curve up to the budget.
        updates: seed → optimizer steps at the budget, if logged.
        curves: (seeds, points), on the common grid.
        low, high: (points,), bounds of the mean curve.
    """

    name: str
    seeds: list[int]
    runs: list[str]
    final: Score
    area: Score
    updates: dict[int, float]
    curves: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference between an arm and the reference, seed by seed.

    The verdict is "higher" or "lower" only if the bootstrap interval and Student's interval both exclude 0, because the
    bootstrap interval alone is too narrow with few seeds.
    """

    per_seed: dict[int, float]
    bootstrap: Interval | None
    student: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """The comparison of several arms at an equal budget.

    Attributes:
        metric: name of the compared metric.
        axis: what the budget counts.
        budget: where all curves end, on the axis.
        reference: the arm that the others are compared with.
        level: of all intervals.
        resamples: of every bootstrap.
        grid: (points,), the common x of all curves. Between logged points, curves are linear.
        differences: arm → "final" or "area" → difference to the reference.
    """

    metric: str
    axis: str
    budget: float
    reference: str
    level: float
    resamples: int
    grid: Array
    arms: list[ArmResult]
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values.

        schema          version of this format
        metric          name of the compared metric
        axis            what the budget counts: environment_steps, tokens, updates or step
        budget          where all curves end, on the axis
        reference       the arm that others are compared with
        level           of all intervals
        method          of every bootstrap: BCa
        resamples       of every bootstrap
        interpolation   of curves between logged points
        versions        package → version
        grid            the common x of all curves
        arms            arm → seeds; runs (folder names); final and area (mean height), each with per_seed (seed →
                        number), mean, low, high; updates (seed → optimizer steps at the budget); curve (mean, low,
                        high on the grid); curves (seed → y on the grid)
        differences     arm → final and area → per_seed, bootstrap and student (mean, low, high; null with one seed),
                        verdict: higher, lower, no difference seen, too few seeds
        notes           what a reader must know beside the numbers
        """
        return {
            "schema": SCHEMA,
            "metric": self.metric,
            "axis": self.axis,
            "budget": self.budget,
            "reference": self.reference,
            "level": self.level,
            "method": METHOD,
            "resamples": self.resamples,
            "interpolation": "linear",
            "versions": _versions(),
            "grid": self.grid.tolist(),
            "arms": {arm.name: _arm_to_json(arm) for arm in self.arms},
            "differences": {
                name: {what: _difference_to_json(found) for what, found in both.items()}
                for name, both in self.differences.items()
            },
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """The sentences that a reader must know to read the numbers."""
        fewest = min(len(arm.seeds) for arm in self.arms)
        lines = [
            f"All curves end at {self.budget:g} {self.axis}; between logged points they are linear.",
            f"Intervals: {self.level:.0%} {METHOD} bootstrap over seeds; differences are paired by seed.",
            "A verdict needs the bootstrap and Student's interval of the difference to exclude 0.",
        ]
        if fewest < 3:
            lines.append(f"The smallest arm has {fewest} seeds: its intervals span the values, without a level.")
        elif fewest < 10:
            lines.append(f"The smallest arm has {fewest} seeds: a bootstrap interval of so few is too narrow.")
        spent = {arm.name: float(np.mean(list(arm.updates.values()))) for arm in self.arms if arm.updates}
        if spent and max(spent.values()) > 1.01 * min(spent.values()):
            each = ", ".join(f"{name} {count:.0f}" for name, count in spent.items())
            lines.append(f"The arms did not make the same number of updates up to this budget: {each}.")
        if len(self.differences) > 1:
            lines.append(f"{len(self.differences)} arms are compared with one reference, without correction for it.")
        return lines

    def table(self) -> Table:
        """The result as a table for the terminal."""
        title, notes = f"{self.metric} at {self.budget:g} {self.axis}", "\n".join(self.notes())
        table = Table(title=cell(title), caption=cell(notes))
        for column in ("arm", "seeds", "measure", "mean (interval)", cell(f"minus {self.reference}"), "verdict"):
            table.add_column(column, justify="left" if column in ("arm", "measure", "verdict") else "right")
        for arm in self.arms:
            both = self.differences.get(arm.name, {})
            final, area = _difference_cells(both.get("final")), _difference_cells(both.get("area"))
            table.add_row(cell(arm.name), str(len(arm.seeds)), "final", str(arm.final.mean), *final)
            table.add_row("", "", "mean height", str(arm.area.mean), *area, end_section=True)
        return table

    def text(self, *, width: int = 120) -> str:
        """The table as plain text."""
        console = Console(file=io.StringIO(), width=width, force_terminal=False, no_color=True)
        console.print(self.table())
        return str(console.file.getvalue())  # type: ignore[attr-defined]


def compare(
    arms: Sequence[Arm],
    *,
    metric: str,
    budget: float | None = None,
    reference: str | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
    axis: str = ENVIRONMENT_STEPS,
    points: int = 41,
) -> Comparison:
    """Compare the learning curves of arms on a common grid up to an equal budget.

    Args:
        metric: a name in the logs, such as `eval/rooms/success`.
        budget: where all curves end; default: where the shortest run ends.
        reference: the arm that others are compared with; default: the first.
        resamples: Higher: smoother bounds, slower. Usual: 10000.
        level: of all intervals. Higher: wider. Usual: 0.95.
        axis: `environment_steps`, `tokens`, `updates` or `step`.
        points: number of points of the grid.

    Raises: RunFolderError, if a run ends before the budget; UnknownName, if no run has the metric or no arm is the
        reference; InvalidData, without arms.
    """
    if not arms:
        raise InvalidData(where="compare", what="it needs at least one arm, found none.", remedy="Give a method.")
    names = [arm.name for arm in arms]
    chosen = reference if reference is not None else names[0]
    if chosen not in names:
        raise UnknownName(where="compare: reference", what=f"no arm is called `{chosen}`.", options=names)
    curves = {(arm.name, run.seed): run.curve(metric, axis=axis) for arm in arms for run in arm.runs}
    end = _common_end(curves, budget, axis)
    start = max(float(x[0]) for x, _ in curves.values())
    grid = np.linspace(start, end, points) if end > start else np.array([end])
    how: Any = {"level": level, "resamples": resamples}
    results = []
    for arm in arms:
        heights = {run.seed: np.interp(grid, *curves[arm.name, run.seed]) for run in arm.runs}
        updates = {run.seed: _updates_at(run, end, axis) for run in arm.runs if run.logs(UPDATES)}
        results.append(_arm_result(arm.name, [run.name for run in arm.runs], grid, heights, updates, **how))
    return Comparison(
        metric=metric,
        axis=axis,
        budget=end,
        reference=chosen,
        grid=grid,
        arms=results,
        differences=_differences(results, chosen, **how),
        **how,
    )


def recomputed(found: Mapping[str, Any], *, order: Sequence[str]) -> Comparison:
    """Compute every interval and verdict of a stored comparison again, from the curves of its seeds.

    Args:
        found: the result of `Comparison.to_json`, also of an earlier version.
        order: names of the arms in the order for tables.
    """
    grid = np.asarray(found["grid"], np.float64)
    how = {"level": found["level"], "resamples": found["resamples"]}
    results = []
    for name in order:
        arm = found["arms"][name]
        heights = {int(seed): np.asarray(arm["curves"][str(seed)], np.float64) for seed in arm["seeds"]}
        updates = {int(seed): float(count) for seed, count in arm["updates"].items()}
        results.append(_arm_result(name, arm["runs"], grid, heights, updates, **how))
    return Comparison(
        metric=found["metric"],
        axis=found["axis"],
        budget=found["budget"],
        reference=found["reference"],
        grid=grid,
        arms=results,
        differences=_differences(results, found["reference"], **how),
        **how,
    )


def difference(
    values: Mapping[int, float], reference: Mapping[int, float], *, level: float = 0.95, resamples: int = 10_000
) -> Difference:
    """Compare two arms on the seeds that both have. Both arguments map a seed to a value."""
    seeds = sorted(values.keys() & reference.keys())
    first, second = [values[seed] for seed in seeds], [reference[seed] for seed in seeds]
    per_seed = {seed: a - b for seed, a, b in zip(seeds, first, second, strict=True)}
    if len(seeds) < 2:
        return Difference(per_seed=per_seed, bootstrap=None, student=None, verdict="too few seeds")
    bootstrap = paired_bootstrap(first, second, level=level, resamples=resamples)
    student = t_interval(list(per_seed.values()), level=level)
    verdict: Verdict = "no difference seen"
    if bootstrap.excludes(0) and student.excludes(0):
        verdict = "higher" if bootstrap.value > 0 else "lower"
    return Difference(per_seed=per_seed, bootstrap=bootstrap, student=student, verdict=verdict)


# ---- pieces -----------------------------------------------------------------------------------------------
def _common_end(curves: Mapping[tuple[str, int], tuple[Array, Array]], budget: float | None, axis: str) -> float:
    shortest = min(curves, key=lambda key: curves[key][0][-1])
    reached = float(curves[shortest][0][-1])
    if budget is None:
        return reached
    if reached < budget:
        raise RunFolderError(
            where=f"compare: arm {shortest[0]}, seed {shortest[1]}",
            what=f"its curve ends at {reached:g} {axis}, before the budget of {budget:g}.",
            remedy=f"Continue the run with `--resume`, or compare at a budget of at most {reached:g}.",
        )
    return float(budget)


def _arm_result(
    name: str,
    runs: list[str],
    grid: Array,
    heights: Mapping[int, Array],
    updates: dict[int, float],
    *,
    level: float,
    resamples: int,
) -> ArmResult:
    """Compute the result of an arm. `heights` maps a seed to the values of its curve on the grid."""
    curves, seeds = np.stack([*heights.values()]), list(heights)
    low, high = mean_band(curves, level=level, resamples=resamples)
    return ArmResult(
        name=name,
        seeds=seeds,
        runs=runs,
        final=_score(seeds, curves[:, -1], level=level, resamples=resamples),
        area=_score(seeds, [area_under_curve(grid, row) for row in curves], level=level, resamples=resamples),
        updates=updates,
        curves=curves,
        low=low,
        high=high,
    )


def _differences(
    results: Sequence[ArmResult], reference: str, *, level: float, resamples: int
) -> dict[str, dict[str, Difference]]:
    """Arm → "final" or "area" → difference to the reference."""
    base = next(result for result in results if result.name == reference)
    return {
        result.name: {
            "final": difference(result.final.per_seed, base.final.per_seed, level=level, resamples=resamples),
            "area": difference(result.area.per_seed, base.area.per_seed, level=level, resamples=resamples),
        }
        for result in results
        if result is not base
    }


def _score(seeds: Sequence[int], values: Sequence[float] | Array, *, level: float, resamples: int) -> Score:
    per_seed = {seed: float(value) for seed, value in zip(seeds, values, strict=True)}
    return Score(per_seed=per_seed, mean=bootstrap_interval(values, level=level, resamples=resamples))


def _updates_at(run: Run, end: float, axis: str) -> float:
    return float(np.interp(end, *run.curve(UPDATES, axis=axis)))


def _difference_cells(found: Difference | None) -> list[str]:
    if found is None:
        return ["", "reference"]
    return [str(found.bootstrap or ""), found.verdict]


# ---- JSON -------------------------------------------------------------------------------------------------
def _arm_to_json(arm: ArmResult) -> dict[str, Any]:
    return {
        "seeds": arm.seeds,
        "runs": arm.runs,
        "final": {"per_seed": arm.final.per_seed} | _interval_to_json(arm.final.mean),
        "area": {"per_seed": arm.area.per_seed} | _interval_to_json(arm.area.mean),
        "updates": arm.updates,
        "curve": {"mean": arm.curves.mean(axis=0).tolist(), "low": arm.low.tolist(), "high": arm.high.tolist()},
        "curves": {seed: row.tolist() for seed, row in zip(arm.seeds, arm.curves, strict=True)},
    }


def _difference_to_json(found: Difference) -> dict[str, Any]:
    return {
        "per_seed": found.per_seed,
        "bootstrap": None if found.bootstrap is None else _interval_to_json(found.bootstrap),
        "student": None if found.student is None else _interval_to_json(found.student),
        "verdict": found.verdict,
    }


def _interval_to_json(interval: Interval) -> dict[str, float]:
    return {"mean": interval.value, "low": interval.low, "high": interval.high}


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "transformers", "numpy", "scipy")}
    return {"palaestra": palaestra.__version__, "python": platform.python_version()} | packages
