"""What single runs of recipes reach, how long they take, and how much memory they need.

    python benchmarks/recipe_runs.py models/smollm2-words.yaml models/smollm2-tools.yaml
    python benchmarks/recipe_runs.py quickstart.yaml --set training.iterations=2

Each is `palaestra train RECIPE` in a process of its own, one after the other. `results/<name>.json` has its
evaluations, the seconds from the start of the process to its end, the most memory that it held, and the machine. Run
nothing else beside it. The run of a system's own recipe (`python benchmarks/recipe_runs.py gigpo`) is stored as
`results/run.json` in the system's folder, where it counts for the system's status.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import describe

from palaestra.catalogue import systems
from palaestra.catalogue.status import RUN
from palaestra.catalogue.systems import FOLDER
from palaestra.recipe import load
from palaestra.store.folder import EVALUATIONS, RESULT
from palaestra.store.metrics import read
from palaestra.training.settings import PolicySettings

RESULTS = Path(__file__).parent / "results"


def measured(recipe: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Run a recipe in an empty folder. Returns what its result file holds.

    Raises: SystemExit, if the run fails.
    """
    words = ["train", recipe, *overrides]
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "palaestra", *words, f"run={folder}"])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"palaestra {' '.join(words)} failed")
    settings = load([recipe], overrides).settings
    return stored(words, folder, seconds=seconds, peak_bytes=1024 * usage.ru_maxrss) | {
        "commit": commit(),
        "environment": settings.environment.name,
        "models": sorted({name for policy in settings.policies.values() if (name := pretrained(policy))}),
    }


def pretrained(policy: PolicySettings) -> str:
    """The pretrained model of a policy; empty, if it has none."""
    return str(policy.load or policy.policy.options.get("model") or "")


def commit() -> str:
    """The commit of this checkout; `-dirty` says that files have changed since."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    return subprocess.run(words, cwd=RESULTS, capture_output=True, text=True, check=False).stdout.strip()


def stored(words: list[str], folder: Path, *, seconds: float, peak_bytes: int) -> dict[str, Any]:
    """What the result file holds of a run that has ended."""
    return {
        "command": " ".join(["palaestra", *words]),
        "line": json.loads((folder / RESULT).read_text(encoding="utf-8"))["line"],
        "evaluations": read(folder / EVALUATIONS),
        "seconds": round(seconds, 1),
        "peak_gb": round(peak_bytes / 1e9, 2),
        "machine": describe(("transformers", "peft")),
    }


def main() -> None:
    """Run each recipe and store what it reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--set", nargs="*", default=[], help="overrides for all of them")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"), help="where the runs lie")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    own = {each.recipe: each.folder for each in systems() if each.recipe}
    for recipe in given.recipes:
        name = load([recipe], given.set).settings.name
        file = given.out / f"{name}.json"
        if recipe in own and given.out == RESULTS:
            file = FOLDER / own[recipe] / RUN
        file.parent.mkdir(parents=True, exist_ok=True)
        found = measured(recipe, given.set, given.runs / name)
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{name}: {found['line']}, {found['seconds']:.0f} s, {found['peak_gb']} GB", flush=True)


if __name__ == "__main__":
    main()
