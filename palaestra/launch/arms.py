"""Runs the arms of a comparison: each arm is trained once per seed, and each run has its own process.

A comparison can be stopped and started again: complete runs are not repeated, and stopped ones are resumed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from palaestra.errors import PalaestraError
from palaestra.store.folder import RESULT, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One run of one arm, with its folder and the arguments of its recipe."""

    arm: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    clones: Path | None = None  # folder in which runs with the same warm start share its weights

    @property
    def complete(self) -> bool:
        """Whether the run has ended. A run writes its result last."""
        return (self.folder / RESULT).exists()

    @property
    def overrides(self) -> list[str]:
        """The overrides that only this run has, beside its arguments."""
        shared = [] if self.clones is None else [f"warm_start.keep={self.clones}"]
        return [f"seed={self.seed}", f"run={self.folder}", "training.threads=1", *shared]

    def command(self) -> list[str]:
        """The command line of the run. It resumes a run that its folder holds already."""
        resume = ["--resume"] if RunFolder(self.folder).holds_a_run else []
        return [sys.executable, "-m", "palaestra", "train", *self.arguments, *self.overrides, "--quiet", *resume]


def run_all(runs: Sequence[ArmRun], *, parallel: int, say: Callable[[str], None]) -> None:
    """Run those that are not complete, `parallel` at a time.

    Args:
        say: gets a line when a run begins and when it has ended.

    Raises: PalaestraError, with the output of the first run that failed; the others are stopped.
    """
    waiting = [run for run in runs if not run.complete]
    say(f"{len(runs) - len(waiting)} of {len(runs)} runs are complete")
    going: list[tuple[ArmRun, subprocess.Popen[str]]] = []
    try:
        while waiting or going:
            while waiting and len(going) < parallel:
                run = waiting.pop(0)
                say(f"{run.arm}, seed {run.seed}: begins in {run.folder}")
                process = subprocess.Popen(
                    run.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
                )
                going.append((run, process))
            time.sleep(0.2)
            for entry in [entry for entry in going if entry[1].poll() is not None]:
                going.remove(entry)
                _close(*entry, say)
    finally:
        for _, process in going:
            process.terminate()
        for _, process in going:
            process.wait()


def _close(run: ArmRun, process: subprocess.Popen[str], say: Callable[[str], None]) -> None:
    output = process.communicate()[0]
    if process.returncode != 0:
        raise PalaestraError(
            where=f"arm {run.arm}, seed {run.seed}",
            what=f"its run ended with exit code {process.returncode}:\n{output.strip()[-2000:]}",
            remedy="Correct the cause and give the same command again. Complete runs are kept.",
        )
    say(f"{run.arm}, seed {run.seed}: {output.strip().splitlines()[-1]}")
