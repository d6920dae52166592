"""Runs studies: the comparisons that are evidence for systems, one file each in a system's `studies/` or in this one.

    python benchmarks/studies.py srgpo salt      # these; all that have no result yet, if none is named
    python benchmarks/studies.py --parallel 2    # two runs at a time
    python benchmarks/studies.py --show srgpo    # runs nothing: its verdict, its claims, and what was seen

Runs lie in runs/studies/<name>; a study that was stopped goes on where it stood. Results: comparison.json,
comparison.txt and measures.json in `results/<name>` beside the study's folder. Then write seen.md there: the verdict
and what was seen, in one plain paragraph whose numbers are references into the JSON, see
palaestra/catalogue/findings.py. The site draws plots and pages from these files.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.catalogue import Study, studies
from palaestra.catalogue.findings import Results
from palaestra.catalogue.studies import results_of
from palaestra.evaluation.statistics import bootstrap_interval
from palaestra.store.metrics import MetricsLog

ROOT = Path(__file__).resolve().parent.parent


def command(study: Study, out: Path, *, parallel: int, seeds: int | None = None) -> list[str]:
    """The comparison as a command line."""
    arms = [piece for name, layers in study.arms.items() for piece in ("--arm", f"{name}: {shlex.join(layers)}")]
    options = ["--seeds", str(seeds or study.seeds), "--out", str(out), "--parallel", str(parallel)]
    options += ["--reference", study.reference, "--metric", study.metric, "--axis", study.axis]
    return [sys.executable, "-m", "palaestra", "compare", study.setup, *study.overrides, *arms, *options]


def measures(study: Study, out: Path) -> dict[str, dict[str, Any]]:
    """Each further metric's mean over iterations: metric → arm → mean over seeds with an interval."""
    found: dict[str, dict[str, Any]] = {name: {} for name in study.also}
    for arm in study.arms:
        logs = [MetricsLog(folder).metrics.read() for folder in sorted((out / "runs" / arm).iterdir())]
        for name in study.also:
            per_seed = [[line[name] for line in log if line.get(name) is not None] for log in logs]
            means = np.array([np.mean(values) for values in per_seed if values])
            if len(means):
                interval = bootstrap_interval(means)
                found[name][arm] = {"mean": interval.value, "low": interval.low, "high": interval.high}
    return {name: per_arm for name, per_arm in found.items() if per_arm}


def run(study: Study, *, runs: Path, root: Path = ROOT, parallel: int = 1, seeds: int | None = None) -> float:
    """Run one study to its end and keep its results; wall seconds."""
    started, out = time.perf_counter(), runs / study.name
    subprocess.run(command(study, out, parallel=parallel, seeds=seeds), cwd=root, check=True)
    kept = results_of(root, study)
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("comparison.json", "comparison.txt"):
        shutil.copyfile(out / name, kept / name)
    text = json.dumps(measures(study, out), indent=1, sort_keys=True) + "\n"
    (kept / "measures.json").write_text(text, encoding="utf-8")
    return time.perf_counter() - started


def shown(study: Study, root: Path = ROOT) -> str:
    """The verdict, each claim with its numbers, and what was seen; of a study without results that it has none."""
    results = Results.read(root, study)
    if results is None:
        return f"{study.name}: not run yet"
    claims = [f"  {each.claim}: {each.outcome}  {each.final}  {each.height}".rstrip() for each in results.findings()]
    seen = results.folder / "seen.md"
    text = (
        results.filled(seen.read_text(encoding="utf-8")).strip() if seen.exists() else "seen.md is still to be written."
    )
    return "\n".join([f"{study.name}: {results.verdict}", *claims, "", text])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=None, help="fewer than the study asks for, to try it")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "studies")
    parser.add_argument("--show", action="store_true", help="what the kept results say")
    chosen = parser.parse_args()
    known = {study.name: study for study in studies(ROOT)}
    unknown = set(chosen.names) - set(known)
    if unknown:
        parser.error(f"no study is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if chosen.show:
        print(*(shown(known[name]) for name in chosen.names or known), sep="\n\n")
        return
    done = [name for name, study in known.items() if (results_of(ROOT, study) / "comparison.json").exists()]
    for name in chosen.names or [name for name in known if name not in done]:
        seconds = run(known[name], runs=chosen.runs, parallel=chosen.parallel, seeds=chosen.seeds)
        print(f"{name}: {seconds:.0f} s\n{shown(known[name])}", flush=True)


if __name__ == "__main__":
    main()
