"""Time of every estimator on tables of 10³ … 10⁶ rows: `python benchmarks/estimators.py`.

Groups of 8 trajectories of 10 to 50 rows, one to three tokens a row, two agents, twenty states a group. Every
registered estimator runs with its default options on a table that was just made, so that keys and the order in time
are not yet known, and every filter on such a table and an advantage that is one number a trajectory; the table's own
construction is reported apart. Seconds are of one processor, so that other programs on the machine matter little; the
fastest of `--repeats` runs counts. The exponent is the slope of log time over log
rows between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from palaestra.data import StepTable
from palaestra.parts.critics import ppo
from palaestra.parts.filters import whiten
from palaestra.registry import names, part
from palaestra.systems.gigpo import gigpo
from palaestra.systems.hi_agent.advantage import foresight
from palaestra.training.stages import assign_credit

RESULT = Path(__file__).parent / "results" / "estimators.json"
SIZES = (10**3, 10**4, 10**5, 10**6)
PLANNER = "planner"  # has the first turn of every trajectory
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
    count, agent = dice.integers(1, 4, size), np.where(turn == 0, 0, dice.integers(0, 2, size))
    tokens = int(count.sum())
    return {
        "group": group,
        "trajectory": trajectory,
        "turn": turn,
        "agent": np.array([PLANNER, "worker"])[agent].tolist(),
        "reward": np.where(last, dice.integers(0, 2, size), 0).astype(np.float32),
        "outcome": np.repeat(dice.integers(0, 2, len(length)), length).astype(np.float32),
        "state_key": dice.integers(0, 20, size),
        "action_key": dice.integers(0, 5, size),
        "next_key": dice.integers(0, 20, size),
        "stratum": np.repeat(dice.integers(0, 4, len(length)), length),
        "game": group % 3,
        "team": agent,
        "process": dice.random(size, np.float32),
        "good": dice.integers(0, 2, size),
        "row_entropy": dice.random(size, np.float32),
        "entropy_old": dice.random(tokens, np.float32),
        "node": trajectory // 2 * 50 + turn,  # two trajectories each are branches of one
        **{name: dice.random(size, np.float32) for name in ("format", "executed", "judged")},
        "parent": np.where(agent == 0, None, 0).tolist(),
        "token_count": count,
        "terminated": np.ones(size, bool),
        "row_value": dice.random(size, np.float32),
        "value_old": dice.random(tokens, np.float32),
        **{name: -dice.random(tokens, np.float32) for name in ("logprob_behavior", "logprob_old", "logprob_reference")},
    }


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure(estimator: Callable[[StepTable], Any], raw: dict[str, Any], repeats: int) -> float:
    """Seconds of one estimator, each time on a fresh table."""
    tables = [StepTable(**raw) for _ in range(repeats)]
    return min(seconds(lambda table=table: estimator(table), 1) for table in tables)  # type: ignore[misc]


def exponent(times: dict[str, float]) -> float | None:
    """Slope of log time over log rows between the two largest sizes."""
    if len(times) < 2:
        return None
    (small, first), (large, second) = list(times.items())[-2:]
    return math.log(second / first) / math.log(int(large) / int(small))


def chosen_parts() -> dict[str, Callable[[StepTable], Any]]:
    """Every estimator and filter without a learned model, and some settings that cost more."""
    found: dict[str, Callable[[StepTable], Any]] = {}
    for name in names("advantage"):
        chosen = part("advantage", name)
        if chosen.takes_iteration or chosen.holds_state:
            continue
        if len(chosen.data) == 1:
            found[name] = chosen.target
        else:
            found[f"{name} (filter)"] = lambda table, own=chosen.target: own(table, table["outcome"])
    found["foresight"] = lambda table: foresight(table, planner=PLANNER, by=("group", "state_key"))
    found["ppo, level token"] = lambda table: ppo(table, level="token")
    found["gigpo, scale std, clock turn"] = lambda table: gigpo(table, scale="std", clock="turn")
    found["chain of gigpo, whiten; with report"] = lambda table: assign_credit([gigpo, whiten], table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = chosen_parts()
    results: dict[str, dict[str, float]] = {name: {} for name in ("table itself", *chosen)}
    for size in options.sizes:
        raw = columns(size)
        results["table itself"][str(size)] = seconds(lambda raw=raw: StepTable(**raw), options.repeats)  # type: ignore[misc]
        for name, estimator in chosen.items():
            results[name][str(size)] = measure(estimator, raw, options.repeats)
    print(f"{'seconds at rows':40}" + "".join(f"{size:>12,}" for size in options.sizes))
    slopes = {name: exponent(times) for name, times in results.items()}
    for name, times in results.items():
        slope = "" if slopes[name] is None else f"   exponent {slopes[name]:.2f}"
        print(f"{name:40}" + "".join(f"{times[str(size)]:12.4f}" for size in options.sizes) + slope)
    slowest = max(times[str(options.sizes[-1])] for name, times in results.items() if name in chosen)
    print(f"slowest estimator at {options.sizes[-1]:,} rows: {slowest:.3f} s (limit {LIMIT} s)")
    content = {
        "machine": describe(("numpy",)),
        "limit": LIMIT,
        "slowest": slowest,
        "seconds": results,
        "exponents": slopes,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
