"""The ratios that other benchmarks report, here and in another checkout: `python benchmarks/two_trees.py --other PATH`.

Each benchmark runs as a process of its own, by turns in the one tree and in the other, so that other programs on the
machine disturb both alike. From each run one number is read, of which a larger one is better: how many times slower the
rival is (TRL's step, prompts that are read again, collecting without playing ahead, lock step), or how many times a
second the work is done. Reported is the median here over the median there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe

RESULT = Path(__file__).parent / "results" / "two_trees.json"
HERE = Path(__file__).resolve().parents[1]
SLOWER = 0.9  # a median below this share of the other tree's is no disturbance of the machine


@dataclass(frozen=True)
class Benchmark:
    """What is run, and the number that is read from what it writes and prints."""

    words: tuple[str, ...]
    number: Callable[[Any, str], float]
    what: str


def _slower_than_wait(_: Any, printed: str) -> float:
    return float(re.findall(r"network +\S+ +\d+ ms an update, ([\d.]+) x wait", printed)[0])


BENCHMARKS: dict[str, Benchmark] = {
    "vs_trl": Benchmark(
        ("--steps", "12", "--cases", "plain"),
        lambda written, _: float(written["rows"]["plain"]["ratio_processor"]),
        "TRL's step over ours",
    ),
    "turns": Benchmark(
        ("--turns", "16", "--repeats", "3"),
        lambda written, _: float(written["rows"][-1]["ratio"]),
        "prompts read again over each id read once, 16 turns",
    ),
    "asynchrony": Benchmark(("--iterations", "15"), _slower_than_wait, "without playing ahead over with it"),
    "lockstep": Benchmark(
        ("--cases", "sometimes", "--repeats", "3", "--wall-repeats", "3"),
        lambda written, _: float(written["cases"]["sometimes"]["wall"]["times_faster"]),
        "a team in lock step over a free one",
    ),
    "separate_policies": Benchmark(
        ("--cases", "in order", "--repeats", "5"),
        lambda written, _: 1 / float(_separate(written)["times_shared"]["update processor"]),
        "updates of a shared policy over those of three",
    ),
    "estimators": Benchmark(
        ("--sizes", "100000", "--repeats", "3"),
        lambda written, _: 1 / sum(next(iter(sizes.values())) for sizes in written["seconds"].values()),
        "all estimators of 10⁵ rows, times a second",
    ),
}


def _separate(written: dict[str, Any]) -> Any:
    cases = written.get("cases", written)
    return cases["in order"]["separate"]


def measure(name: str, tree: Path) -> float:
    """The number of one run in a tree."""
    benchmark = BENCHMARKS[name]
    kept = tree / "benchmarks" / "results" / "asynchrony.json"  # which this one writes wherever it runs
    before = kept.read_bytes() if kept.exists() else None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        writes = () if name == "asynchrony" else ("--out", str(out))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
        command = [sys.executable, f"benchmarks/{name}.py", *benchmark.words, *writes]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} in {tree}:\n{done.stderr[-2000:]}")
        written = json.loads(out.read_text()) if writes else None
    if before is not None:
        kept.write_bytes(before)
    return benchmark.number(written, done.stdout)


def compare(name: str, other: Path, repeats: int) -> dict[str, Any]:
    """Both trees by turns."""
    numbers: dict[str, list[float]] = {"here": [], "there": []}
    for repeat in range(repeats):
        pair = [("here", HERE), ("there", other)]
        for where, tree in pair if repeat % 2 else pair[::-1]:
            numbers[where].append(measure(name, tree))
    medians = {where: statistics.median(values) for where, values in numbers.items()}
    return {"what": BENCHMARKS[name].what, **numbers, "ratio": medians["here"] / medians["there"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--check", action="store_true", help=f"fail if a ratio is below {SLOWER}")
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    for name in chosen.only:
        found[name] = compare(name, chosen.other.resolve(), chosen.repeats)
        print(f"{name:18} {found[name]['ratio']:.2f} of the other tree's: {found[name]['what']}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=chosen.other, capture_output=True, text=True)
    content = {"machine": describe(), "other": commit.stdout.strip(), "benchmarks": found}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if chosen.check:
        slow = [name for name, one in found.items() if one["ratio"] < SLOWER]
        assert not slow, slow


if __name__ == "__main__":
    main()
