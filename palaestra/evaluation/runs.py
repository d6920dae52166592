"""Reads the runs and arms of a comparison from run folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.errors import RunFolderError, UnknownName, nearest
from palaestra.store.checksums import log_fault
from palaestra.store.folder import DECISIVE, EVALUATIONS, METRICS, RECIPE, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, read

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The logged lines of one run: iterations and evaluations, each with the budget that the run had used by then."""

    name: str
    seed: int
    lines: tuple[Mapping[str, Any], ...]

    def logs(self, metric: str) -> bool:
        """Whether the run has logged the metric."""
        return any(line.get(metric) is not None for line in self.lines)

    def curve(self, metric: str, *, axis: str = ENVIRONMENT_STEPS) -> tuple[Array, Array]:
        """The curve (x, y) of a metric over an axis. x is strictly ascending; of lines with equal x the last counts.

        Raises: UnknownName, with the nearest names, if no line has the metric.
        """
        points = {}
        for line in self.lines:
            if line.get(metric) is not None and line.get(axis) is not None:
                points[float(line[axis])] = float(line[metric])
        if not points:
            known = {name for line in self.lines for name in line}
            raise UnknownName(
                where=f"compare: run {self.name}",
                what=f"it has logged no `{metric}` with `{axis}`.",
                options=nearest(metric, known) or sorted(name for name in known if name.startswith("eval/"))[:12],
                remedy="Choose another metric with `--metric`, or let the runs evaluate (`evaluation.every`).",
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
        """The seeds in ascending order."""
        return [run.seed for run in self.runs]


def load_arm(
    name: str, run_folders: Sequence[str | os.PathLike[str] | RunFolder], *, seeds: Sequence[int] | None = None
) -> Arm:
    """Read the runs of one arm.

    Args:
        seeds: one for each folder; default: `seed` in its `recipe.json`.

    Raises: RunFolderError, if a folder holds no run, or two runs have the same seed.
    """
    folders = [item if isinstance(item, RunFolder) else RunFolder.open(item) for item in run_folders]
    if not folders:
        raise RunFolderError(where=f"compare: arm {name}", what="it has no run.", remedy="Give at least one seed.")
    numbers = list(seeds) if seeds is not None else [_seed_of(folder) for folder in folders]
    if len(set(numbers)) < len(folders):
        raise RunFolderError(
            where=f"compare: arm {name}",
            what=f"several of its runs have the same seed: {numbers}.",
            remedy="Give each run its own `seed`. Runs of one seed are equal.",
        )
    runs = [_load_run(folder, seed) for folder, seed in zip(folders, numbers, strict=True)]
    return Arm(name=name, runs=tuple(sorted(runs, key=lambda run: run.seed)))


def _seed_of(folder: RunFolder) -> int:
    seed = folder.read_recipe().get("seed", {"value": 0})["value"]
    if not isinstance(seed, int):
        raise RunFolderError(where=str(folder / RECIPE), what=f"its `seed` is {seed!r}.", remedy="Copy the file back.")
    return seed


def _load_run(folder: RunFolder, seed: int) -> Run:
    """Read the lines in the order of iterations. An evaluation without a budget gets that of its iteration.

    Raises: RunFolderError, if the logs lack lines that they had at a checkpoint.
    """
    places = map(folder.checkpoint, reversed(folder.checkpoint_steps()))
    fault = next(filter(None, (log_fault(place, folder.path, *DECISIVE) for place in places)), None)
    if fault is not None:
        raise RunFolderError(
            where=str(folder.path),
            what=f"{fault}.",
            remedy="Copy the file back. Or go on with `--resume`, which does again what the logs lack.",
        )
    iterations = read(folder / METRICS)
    spent = {0: {ENVIRONMENT_STEPS: 0, UPDATES: 0}}
    for line in iterations:
        spent[line[STEP]] = {key: line[key] for key in (ENVIRONMENT_STEPS, UPDATES) if key in line}
    lines = iterations + read(folder / EVALUATIONS)
    complete = [spent.get(line[STEP], {}) | line for line in lines]
    return Run(name=folder.path.name, seed=seed, lines=tuple(sorted(complete, key=lambda line: line[STEP])))
