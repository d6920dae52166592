"""Time of every estimator on tables of 10³ … 10⁶ rows: `python benchmarks/estimators.py`.

Groups of 8 trajectories of 10 to 50 rows, one to three tokens a row, two agents, twenty states a group. Every
registered estimator runs with its default options on a table that was just made, so that keys and the order in time
are not yet known; the table's own construction is reported apart. The fastest of `--repeats` runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra import advantages
from palaestra.data import StepTable

RESULT = Path(__file__).parent / "results" / "estimators.json"
SIZES = (10**3, 10**4, 10**5, 10**6)
LIMIT = 1.0  # seconds at the largest size


def columns(rows: int, *, seed: int = 0) -> dict[str, Any]:
    """The columns of a batch of about this many rows, in whole trajectories."""
    dice = np.random.default_rng(seed)
    length = dice.integers(10, 51, rows // 10 + 8)
    length = length[: int(np.searchsorted(length.cumsum(), rows)) + 1]
    trajectory = np.repeat(np.arange(len(length)), length)
    turn = np.arange(len(trajectory)) - np.repeat(length.cumsum() - length, length)
    last = turn == np.repeat(length, length) - 1
    size, group = len(trajectory), trajectory // 8
    count = dice.integers(1, 4, size)
    return {
        "group": group,
        "trajectory": trajectory,
        "turn": turn,
        "agent": dice.integers(0, 2, size),
        "reward": np.where(last, dice.integers(0, 2, size), 0).astype(np.float32),
        "state_key": dice.integers(0, 20, size),
        "token_count": count,
        "terminated": np.ones(size, bool),
        "value": dice.random(size, np.float32),
        "token_value": dice.random(int(count.sum()), np.float32),
    }


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(estimator: Callable[[StepTable], Any], raw: dict[str, Any], repeats: int) -> float:
    """Seconds of one estimator, each time on a fresh table."""
    tables = [StepTable(**raw) for _ in range(repeats)]
    return min(seconds(lambda table=table: estimator(table), 1) for table in tables)  # type: ignore[misc]


def machine() -> dict[str, Any]:
    """Where this was measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    parts = [o for o in vars(advantages).values() if hasattr(o, "part") and len(o.part.data) == 1]
    chosen = {o.part.name: o for o in sorted(parts, key=lambda o: o.part.name)}
    chosen["ppo, level token"] = lambda table: advantages.ppo(table, level="token")
    chosen["gigpo, scale std, clock turn"] = lambda table: advantages.gigpo(table, scale="std", clock="turn")
    chosen["chain of gigpo, whiten; with report"] = lambda table: advantages.chain(
        [advantages.gigpo, advantages.whiten], table
    )
    results: dict[str, dict[str, float]] = {name: {} for name in ("table itself", *chosen)}
    for size in options.sizes:
        raw = columns(size)
        results["table itself"][str(size)] = seconds(lambda raw=raw: StepTable(**raw), options.repeats)  # type: ignore[misc]
        for name, estimator in chosen.items():
            results[name][str(size)] = measure(estimator, raw, options.repeats)
    print(f"{'seconds at rows':40}" + "".join(f"{size:>12,}" for size in options.sizes))
    for name, times in results.items():
        print(f"{name:40}" + "".join(f"{times[str(size)]:12.4f}" for size in options.sizes))
    slowest = max(times[str(options.sizes[-1])] for name, times in results.items() if name in chosen)
    print(f"slowest estimator at {options.sizes[-1]:,} rows: {slowest:.3f} s (limit {LIMIT} s)")
    content = {"machine": machine(), "limit": LIMIT, "slowest": slowest, "seconds": results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
