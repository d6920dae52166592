"""Spikes of the gradient norm in a study's runs: per arm, the largest norm and how often it is far above its median.

    python benchmarks/spikes.py dr_mas_search            # after benchmarks/studies.py dr_mas_search

Reads the metrics of runs/studies/<study> and writes spikes.json beside its comparison: for each norm that the runs
log (of the policy, of each policy, of each agent's share of one policy) and each arm the largest norm, the same over
the run's median, and the share of iterations whose norm is more than `--times` medians: means over seeds with
intervals, and what an arm has more than the reference, paired by seed. A norm is the mean over an iteration's
updates, before any bound."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.catalogue import Study, studies
from palaestra.catalogue.studies import results_of
from palaestra.evaluation.statistics import METHOD, bootstrap_interval, t_interval
from palaestra.store.atomic import write_atomic
from palaestra.store.metrics import MetricsLog

ROOT = Path(__file__).resolve().parent.parent
NORM = "grad_norm"


def spikes(norms: np.ndarray, *, times: float) -> dict[str, float]:
    """Of one run's norms (iterations,): the largest, that over the median, and the share above `times` medians."""
    middle = float(np.median(norms))
    return {
        "largest": float(norms.max()),
        "largest_over_median": float(norms.max()) / middle if middle else 0.0,
        "share": float(np.mean(norms > times * middle)),
    }


def measured(study: Study, out: Path, *, times: float) -> dict[str, Any]:
    """Norm → measure → arm → mean with an interval, and the difference from the reference."""
    per_seed: dict[str, dict[str, list[dict[str, float]]]] = {}
    for arm in study.arms:
        for folder in sorted((out / "runs" / arm).iterdir(), key=lambda path: int(path.name.partition("-")[2])):
            log = MetricsLog(folder).metrics.read()
            for name in sorted({key for line in log for key in line if key.endswith(NORM)}):
                norms = np.array([line[name] for line in log if line.get(name) is not None])
                per_seed.setdefault(name, {}).setdefault(arm, []).append(spikes(norms, times=times))
    return {
        name: {
            measure: {arm: _compared(arms, arm, study.reference, measure) for arm in arms}
            for measure in ("largest", "largest_over_median", "share")
        }
        for name, arms in per_seed.items()
    }


def _compared(arms: dict[str, list[dict[str, float]]], arm: str, reference: str, measure: str) -> dict[str, Any]:
    values = {name: np.array([seed[measure] for seed in arms[name]]) for name in {arm, reference}}
    interval = bootstrap_interval(values[arm])
    found = {"mean": interval.value, "low": interval.low, "high": interval.high, "method": METHOD}
    if arm != reference and len(values[arm]) == len(values[reference]) > 1:
        more = t_interval(values[arm] - values[reference])
        found |= {"more": more.value, "more_low": more.low, "more_high": more.high}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--times", type=float, default=3.0, help="how many medians make a spike")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "studies")
    chosen = parser.parse_args()
    known = {study.name: study for study in studies(ROOT)}
    for name in chosen.names:
        if name not in known:
            parser.error(f"no study is called {name}; there are {', '.join(known)}")
        found = {"times": chosen.times, "norms": measured(known[name], chosen.runs / name, times=chosen.times)}
        path = results_of(ROOT, known[name]) / "spikes.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
