"""Time of a table of 10⁶ rows, here and in another checkout: `python benchmarks/table_time.py --other PATH`.

One run does what an iteration does with its table: build it from columns, replace one column four times, and compute
one advantage (GiGPO). Trajectories have 10 to 50 rows, groups 8 trajectories and 20 states; names are strings, as
episodes give them. Only columns that every version of the library knows are used.

Each run is a process of its own with one thread, and its clock begins after the imports. Runs of the two checkouts
alternate, so that other programs on the machine disturb both alike. The ratio is the median of processor seconds here
over the median there; both must give the same advantages. Without `--other` only this checkout is timed and nothing is
written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

import palaestra
from palaestra.data import StepTable
from palaestra.registry import part

RESULT = Path(__file__).parent / "results" / "table_time.json"
HERE = Path(__file__).resolve().parents[1]
ROWS, REPEATS, REPLACED = 10**6, 5, 4
LIMIT = 0.5  # here / other


# ---- one run ------------------------------------------------------------------------------------------------
def columns(rows: int, *, seed: int = 0) -> dict[str, Any]:
    """The columns of a batch of at least this many rows, in whole trajectories and whole groups."""
    dice = np.random.default_rng(seed)
    length = dice.integers(10, 51, 8 * math.ceil(rows / 80))
    length = length[: 8 * math.ceil((int(np.searchsorted(length.cumsum(), rows)) + 1) / 8)]
    trajectory = np.repeat(np.arange(len(length)), length)
    turn = np.arange(len(trajectory)) - np.repeat(length.cumsum() - length, length)
    last = turn == np.repeat(length, length) - 1
    size = len(trajectory)
    return {
        "group": [f"000000-{number:05d}" for number in (trajectory // 8).tolist()],
        "trajectory": [f"000000-{number // 8:05d}/{number % 8}" for number in trajectory.tolist()],
        "agent": ["player"] * size,
        "turn": turn,
        "reward": np.where(last, dice.integers(0, 2, size), 0).astype(np.float32),
        "state_key": [f"state {number}" for number in dice.integers(0, 20, size).tolist()],
    }


def run_once(rows: int) -> dict[str, Any]:
    """Seconds of each piece of work, by the processor's clock and by the wall's, and the sum of the advantages."""
    raw, gigpo = columns(rows), part("advantage", "gigpo").target
    rewards = [torch.from_numpy(raw["reward"] * factor) for factor in range(1, REPLACED + 1)]
    taken: dict[str, dict[str, float]] = {"processor": {}, "wall": {}}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        made = work()
        taken["processor"][what] = time.process_time() - processor
        taken["wall"][what] = time.perf_counter() - wall
        return made

    def replaced(table: StepTable) -> StepTable:
        for reward in rewards:
            table = table.replace(reward=reward)
        return table

    table = timed("build", lambda: StepTable(**raw))
    table = timed("replace", lambda: replaced(table))
    advantage = timed("advantage", lambda: gigpo(table))
    for seconds in taken.values():
        seconds["all"] = sum(seconds.values())
    return {
        "seconds": taken,
        "rows": len(table),
        "size of advantages": float(advantage.double().abs().sum()),
        "package": str(Path(palaestra.__file__).resolve().parents[1]),
    }


# ---- both checkouts -----------------------------------------------------------------------------------------
def run_in(checkout: Path, rows: int) -> dict[str, Any]:
    """One run with the package of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one-run", "--rows", str(rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a run in {checkout} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    if Path(found["package"]) != checkout.resolve():
        raise SystemExit(f"the run in {checkout} imported the package of {found['package']}.")
    return found


def commit(checkout: Path) -> str | None:
    """The commit that is checked out there; None where git does not know."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def medians(runs: list[dict[str, Any]], clock: str) -> dict[str, float]:
    """The median of each piece of work."""
    return {what: statistics.median(run["seconds"][clock][what] for run in runs) for what in runs[0]["seconds"][clock]}


def compare(other: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Alternating runs of both checkouts, their medians and ratios."""
    places = {"here": HERE, "other": other}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in places}
    for _ in range(repeats):
        for name, checkout in places.items():
            runs[name].append(run_in(checkout, rows))
    sizes = [run["size of advantages"] for own in runs.values() for run in own]
    if max(sizes) - min(sizes) > 1e-6 * max(sizes):
        raise SystemExit(f"the checkouts do not compute the same advantages: {sizes}")
    clocks = ("processor", "wall")
    seconds = {name: {clock: medians(own, clock) for clock in clocks} for name, own in runs.items()}
    ratios = {
        clock: {what: seconds["here"][clock][what] / seconds["other"][clock][what] for what in seconds["here"][clock]}
        for clock in clocks
    }
    return {
        "machine": describe(("numpy",)),
        "commits": {name: commit(checkout) for name, checkout in places.items()},
        "rows": runs["here"][0]["rows"],
        "runs": repeats,
        "limit": LIMIT,
        "ratio": ratios["processor"]["all"],
        "ratios": ratios,
        "seconds": seconds,
        "runs in order": {name: [run["seconds"]["processor"]["all"] for run in own] for name, own in runs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--smoke", action="store_true", help="a size that measures nothing: 1000 rows, one run each")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one-run", action="store_true", help=argparse.SUPPRESS)  # what `run_in` starts
    options = parser.parse_args()
    rows, repeats = (1000, 1) if options.smoke else (options.rows, options.repeats)
    torch.set_num_threads(1)
    if options.one_run:
        print(json.dumps(run_once(rows)))
        return
    if options.other is None:
        runs = [run_in(HERE, rows) for _ in range(repeats)]
        print(f"{runs[0]['rows']:,} rows: " + json.dumps(medians(runs, "processor")))
        return
    content = compare(options.other, rows, repeats)
    for name, seconds in content["seconds"].items():
        print(f"{name:6}" + "".join(f"  {what} {value:.3f} s" for what, value in seconds["processor"].items()))
    print(f"ratio {content['ratio']:.3f} at {content['rows']:,} rows (limit {LIMIT})")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
