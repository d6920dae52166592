"""Learning curves of the recipes of worlds: from the warm start to the end, several seeds, the gain with its interval.

    python benchmarks/curves.py shop household     # these; all of recipes/worlds without a result, if none is named
    python benchmarks/curves.py shop --seeds 5

Each seed is `palaestra train worlds/<name>.yaml seed=<n>`. Runs lie in runs/curves; one that is complete is not run
again: remove its folder when the recipe or the world changes. results/curves/<name>.json keeps every evaluation. The
site makes the table and the curves of it. The gain is the difference between the last evaluation and the first, which
is the warm start's. It has two intervals: of these runs, had they been tested on other tasks, and over seeds
(Student's), which is wide, because warm starts differ a lot.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import machine
import numpy as np

from palaestra.commands.launch.arms import ArmRun, run_all
from palaestra.evaluation.statistics import Interval, t_interval
from palaestra.recipe import load
from palaestra.store.folder import EVALUATIONS, TIMINGS
from palaestra.store.metrics import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "curves"


def curve(folder: Path, metric: str) -> list[dict[str, float]]:
    """The run's evaluations: iteration, environment steps, success."""
    records = read(folder / EVALUATIONS)
    return [{"step": r["step"], "environment_steps": r["environment_steps"], "value": r[metric]} for r in records]


def measure(name: str, *, seeds: int, runs: Path, overrides: list[str], parallel: int) -> dict[str, Any]:
    """All seeds of one recipe, and the gain."""
    settings = load([f"worlds/{name}.yaml"], overrides).settings
    world = (settings.evaluation.environment or settings.environment).name
    metric = f"eval/{world}/{settings.evaluation.metric}"
    recipe = (f"worlds/{name}.yaml", *overrides)
    made = [
        ArmRun(arm=name, seed=seed, folder=runs / name / f"seed-{seed}", arguments=recipe)
        for seed in range(1, seeds + 1)
    ]
    run_all(made, parallel=parallel, say=lambda line: print(line, file=sys.stderr, flush=True))
    found = [curve(one.folder, metric) for one in made]
    first, last = (np.array([one[place]["value"] for one in found]) for place in (0, -1))
    runs_gain = of_these_runs(first, last, settings.evaluation.tasks)
    over = t_interval(last - first) if seeds > 1 else None
    return {
        "recipe": f"worlds/{name}.yaml",
        "metric": metric,
        "tasks": settings.evaluation.tasks,
        "seeds": seeds,
        "warm_start": round(float(first.mean()), 4),
        "trained": round(float(last.mean()), 4),
        "gain": [round(runs_gain.value, 4), round(runs_gain.low, 4), round(runs_gain.high, 4)],
        "gain_over_seeds": None if over is None else [round(over.low, 4), round(over.high, 4)],
        "seconds": round(float(np.mean([seconds(one.folder) for one in made])), 1),
        "curves": found,
        "machine": machine.describe(),
    }


def of_these_runs(first: np.ndarray, last: np.ndarray, tasks: int) -> Interval:
    """The mean gain of these runs and where it would lie with other tasks: normal, two shares a run."""
    spread = np.sqrt((first * (1 - first) + last * (1 - last)).sum() / tasks) / len(first)
    mean, reach = float((last - first).mean()), float(spread) * NormalDist().inv_cdf(0.975)
    return Interval(value=mean, low=mean - reach, high=mean + reach)


def seconds(folder: Path) -> float:
    """Wall time of a run's rollouts and updates, the warm start and evaluations left out."""
    lines = read(folder / TIMINGS)
    return sum(float(value) for line in lines for name, value in line.items() if name.startswith("time/"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "curves")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides, to try something")
    chosen = parser.parse_args()
    known = sorted(path.stem for path in (ROOT / "recipes" / "worlds").glob("*.yaml"))
    missing = [name for name in known if not (RESULTS / f"{name}.json").exists()]
    for name in chosen.names or missing:
        result = measure(name, seeds=chosen.seeds, runs=chosen.runs, overrides=chosen.set, parallel=chosen.parallel)
        print("{}: {:.3f} -> {:.3f}, gain {:.3f} [{:.3f}, {:.3f}], {:.0f} s a run".format(
            name, result["warm_start"], result["trained"], *result["gain"], result["seconds"]), flush=True)  # fmt: skip
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
