"""Runs and arms: what comparisons read from run folders.

Knows the logs of run folders. Knows nothing of statistics, recipes or how runs are started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.errors import RunFolderError, UnknownName, nearest
from palaestra.store.folder import EVALUATIONS, METRICS, RECIPE, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, read

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's logged lines, evaluations and iterations together, each with the budget spent until then."""

    name: str
    seed: int
    lines: tuple[Mapping[str, Any], ...]

    def logs(self, metric: str) -> bool:
        """Whether any line has the metric."""
        return any(line.get(metric) is not None for line in self.lines)

    def curve(self, metric: str, *, axis: str = ENVIRONMENT_STEPS) -> tuple[Array, Array]:
        """(x, y), x strictly ascending; at equal x the last line counts.

        Raises: UnknownName, if no line has the metric; the nearest names are given.
        """
        points = {}
        for line in self.lines:
            if line.get(metric) is not None and line.get(axis) is not None:
                points[float(line[axis])] = float(line[metric])
        if not points:
            known = {name for line in self.lines for name in line}
            raise UnknownName(
                where=f"compare: run {self.name}",
                what=f"it logged no `{metric}` over `{axis}`.",
                options=nearest(metric, known) or sorted(name for name in known if name.startswith("eval/"))[:12],
                remedy="Name another metric with `--metric`, or let the runs evaluate (`evaluation.every`).",
            )
        x = sorted(points)
        return np.array(x), np.array([points[at] for at in x])


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Runs that differ only in their seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds, ascending."""
        return [run.seed for run in self.runs]


def load_arm(
    name: str, run_folders: Sequence[str | os.PathLike[str] | RunFolder], *, seeds: Sequence[int] | None = None
) -> Arm:
    """The runs of one arm.

    Args:
        seeds: one for each folder; by default what `recipe.json` says under `seed`.

    Raises: RunFolderError, if a folder holds no run, or two have the same seed.
    """
    folders = [item if isinstance(item, RunFolder) else RunFolder.open(item) for item in run_folders]
    if not folders:
        raise RunFolderError(where=f"compare: arm {name}", what="it has no run.", remedy="Give at least one seed.")
    numbers = list(seeds) if seeds is not None else [_seed_of(folder) for folder in folders]
    if len(set(numbers)) < len(folders):
        raise RunFolderError(
            where=f"compare: arm {name}",
            what=f"its runs do not have different seeds: {numbers}.",
            remedy="Two runs of one seed are one run; give each its own `seed`.",
        )
    runs = [_load_run(folder, seed) for folder, seed in zip(folders, numbers, strict=True)]
    return Arm(name=name, runs=tuple(sorted(runs, key=lambda run: run.seed)))


def _seed_of(folder: RunFolder) -> int:
    entry = folder.read_json(RECIPE).get("seed", 0)
    return int(entry["value"] if isinstance(entry, Mapping) else entry)


def _load_run(folder: RunFolder, seed: int) -> Run:
    """Lines in order of iteration; an evaluation line without a budget takes that of its iteration."""
    iterations = read(folder / METRICS)
    spent = {0: {ENVIRONMENT_STEPS: 0, UPDATES: 0}}
    for line in iterations:
        spent[line[STEP]] = {key: line[key] for key in (ENVIRONMENT_STEPS, UPDATES) if key in line}
    lines = iterations + read(folder / EVALUATIONS)
    complete = [spent.get(line[STEP], {}) | line for line in lines]
    return Run(name=folder.path.name, seed=seed, lines=tuple(sorted(complete, key=lambda line: line[STEP])))
