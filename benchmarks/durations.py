"""Where weights of durations are right and where they are not: `python benchmarks/durations.py`.

A bandit of two acts, A (1 s, reward 0.5) and B (10 s, reward 1), learned by REINFORCE from batches of results that come
in on a simulated clock. "rate": results arrive at a rate π(a) / dt(a), as from slots that are reserved for each act.
"pool": workers that draw a new act as soon as they are free. Each with and without the weight `duration`, with and
without the mean of the batch as a baseline. The result also tells how often B arrives where its probability stays 1/2
and it takes 20 s.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from palaestra.data import StepTable, derive
from palaestra.systems.duration_aware.duration import duration

RESULT = Path(__file__).parent / "results" / "durations.json"
TOOK, REWARD = np.array([1.0, 10.0]), np.array([0.5, 1.0])
WORKERS, BATCH = 64, 64
ARRIVALS = ("rate", "pool")


class Rate:
    """Results at a rate π(a) / dt(a)."""

    def __init__(self, took: np.ndarray, seed: int) -> None:
        self._took, self._draw = took, np.random.default_rng(seed)

    def results(self, chance: float, count: int) -> np.ndarray:
        """The acts of the next `count` results, with the probability `chance` of B."""
        rate = np.array([1 - chance, chance]) / self._took
        return (self._draw.random(count) < rate[1] / rate.sum()).astype(int)


class Pool:
    """Workers that draw a new act as soon as they are free."""

    def __init__(self, took: np.ndarray, seed: int) -> None:
        self._took, self._draw = took, np.random.default_rng(seed)
        self._busy: list[tuple[float, int, int]] = []  # until when, worker, act

    def results(self, chance: float, count: int) -> np.ndarray:
        """The acts of the next `count` results; what they leave free draws with the probability `chance` of B."""
        return np.fromiter(self._finish(chance, count), int, count)

    def _finish(self, chance: float, count: int) -> Iterator[int]:
        for worker in range(len(self._busy), WORKERS):
            self._start(self._draw.random() * self._took.max(), worker, chance)  # not all at once
        for _ in range(count):
            now, worker, act = heapq.heappop(self._busy)
            self._start(now, worker, chance)
            yield act

    def _start(self, now: float, worker: int, chance: float) -> None:
        act = int(self._draw.random() < chance)
        heapq.heappush(self._busy, (now + self._took[act], worker, act))


def weights(took: np.ndarray) -> np.ndarray:
    """The library's weight of each result."""
    rows = len(took)
    names = {"group": ["g"] * rows, "trajectory": list(range(rows)), "agent": ["x"] * rows}
    table = StepTable(**names, turn=[0] * rows, reward=[0.0] * rows, duration=torch.from_numpy(took))
    return duration(table).numpy()


def learn(arrivals: str, *, weighted: bool, baseline: bool, seed: int, updates: int = 1000, lr: float = 0.5) -> float:
    """The probability of B at the end; it begins with 1/2."""
    source = (Rate if arrivals == "rate" else Pool)(TOOK, derive(seed, arrivals, weighted, baseline))
    logit = 0.0
    for _ in range(updates):
        chance = 1 / (1 + np.exp(-logit))
        acts = source.results(chance, BATCH)
        advantage = REWARD[acts] - (REWARD[acts].mean() if baseline else 0.0)
        weight = weights(TOOK[acts]) if weighted else 1.0
        logit += lr * float(np.mean(weight * advantage * (acts - chance)))
    return float(1 / (1 + np.exp(-logit)))


def frequency(arrivals: str, *, chance: float = 0.5, slow: float = 20.0, count: int = 20_000) -> float:
    """How often B arrives while its probability stays the same."""
    source = (Rate if arrivals == "rate" else Pool)(np.array([1.0, slow]), derive(0, "frequency", arrivals))
    source.results(chance, count // 4)  # until the first draws are gone
    return float(source.results(chance, count).mean())


def measure(*, seeds: int, updates: int = 1000) -> dict[str, object]:
    """Means over seeds, by arrivals, baseline and weight."""
    ends = {
        f"{arrivals}, {'mean baseline' if baseline else 'no baseline'}, {'weighted' if weighted else 'plain'}": float(
            np.mean(
                [learn(arrivals, weighted=weighted, baseline=baseline, seed=s, updates=updates) for s in range(seeds)]
            )
        )
        for arrivals in ARRIVALS
        for baseline in (False, True)
        for weighted in (False, True)
    }
    return {
        "acts": {"A": {"seconds": 1, "reward": 0.5}, "B": {"seconds": 10, "reward": 1.0}},
        "seeds": seeds,
        "updates": updates,
        "probability of B at the end": {name: round(value, 4) for name, value in ends.items()},
        "share of B among results at 1/2, 1 s against 20 s": {a: round(frequency(a), 4) for a in ARRIVALS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    found = measure(seeds=chosen.seeds, updates=chosen.updates)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(chosen.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
