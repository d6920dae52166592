"""Teams on real tasks: what each recipe of recipes/teams reaches, and what is left without tools or without learning.

    python benchmarks/teams.py math desk_attack      # these; all below, if none is named
    python benchmarks/teams.py chain star --seeds 1 2 3 4 5

Each run is `palaestra train teams/<name>.yaml seed=<n> <overrides of the arm>`. Runs lie in runs/teams; one that is
complete is not run again. results/teams/<name>.json keeps every evaluation of every arm with its interval, and over
several seeds the mean of first and last evaluation and of the gain, with bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
from numpy.typing import NDArray

from palaestra.commands.launch.arms import ArmRun, run_all
from palaestra.evaluation.statistics import bootstrap_interval
from palaestra.recipe import load
from palaestra.store.folder import EVALUATIONS
from palaestra.store.metrics import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "teams"
NO_TOOLS = ["agents.solver.tools.use=[]", "agents.verifier.tools.use=[]"]
ARMS: dict[str, dict[str, list[str]]] = {
    "math": {"tools": [], "no_tools": NO_TOOLS},
    "desk_attack": {"learning_attacker": [], "fixed_attacker": ["agents.attacker.frozen=true"]},
}
SHAPES = (
    "solver_verifier",
    "mact",
    "agentflow",
    "sub_agents",
    "debate",
    "chain",
    "star",
    "mesh",
    "layers",
    "independent",
)
ARMS |= {name: {"recipe": []} for name in (*SHAPES, "adapters")}


def evaluations(folder: Path, environment: str) -> list[dict[str, float]]:
    """Every evaluation of a run: success with its interval, and what the environment told beside it."""
    head = f"eval/{environment}/"
    kept = ("success", "success_low", "success_high", "info/attack_success", "info/benign_success", "info/proposals")
    return [
        {"step": record["step"], **{name: round(record[head + name], 4) for name in kept if head + name in record}}
        for record in read(folder / EVALUATIONS)
    ]


def measure(name: str, *, seeds: list[int], runs: Path) -> dict[str, Any]:
    """All arms and seeds of one recipe."""
    settings = load([f"teams/{name}.yaml"]).settings
    made = [
        ArmRun(arm=arm, seed=seed, folder=runs / name / arm / f"seed-{seed}", arguments=(f"teams/{name}.yaml", *more))
        for seed in seeds
        for arm, more in ARMS[name].items()
    ]
    run_all(made, parallel=1, say=lambda line: print(line, file=sys.stderr, flush=True))
    world = (settings.evaluation.environment or settings.environment).name
    found: dict[str, Any] = {arm: {} for arm in ARMS[name]}
    for one in made:
        found[one.arm][f"seed {one.seed}"] = evaluations(one.folder, world)
    told = {"recipe": f"teams/{name}.yaml", "overrides": ARMS[name], "arms": found, "machine": machine.describe()}
    if len(seeds) > 1:
        told["seeds"] = {arm: over_seeds(list(curves.values())) for arm, curves in found.items()}
    return told


def over_seeds(curves: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean success at the first and last evaluation, and of what was gained, each with an interval over the seeds."""
    first, last = (np.array([curve[place]["success"] for curve in curves]) for place in (0, -1))
    spans = {"first": first, "last": last, "gain": last - first}
    return {name: _interval(values) for name, values in spans.items()}


def _interval(values: NDArray[np.float64]) -> dict[str, float]:
    found = bootstrap_interval(values)
    return {"mean": round(found.value, 4), "low": round(found.low, 4), "high": round(found.high, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ARMS, []])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "teams")
    chosen = parser.parse_args()
    for name in chosen.names or ARMS:
        result = measure(name, seeds=chosen.seeds, runs=chosen.runs)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        for arm, found in result["arms"].items():
            for seed, curve in found.items():
                print(f"{name}, {arm}, {seed}: {curve[0]} -> {curve[-1]}", flush=True)
            if "seeds" in result:
                print(f"{name}, {arm}, all seeds: {result['seeds'][arm]}", flush=True)


if __name__ == "__main__":
    main()
